//! The attributes `#[windlass::main]` and `#[windlass::test]`. Use them through the crate `windlass`, feature `macros`.
//!
//! Both keep the `async fn` as it is, as an inner function, and put a plain function with the same name, attributes and
//! return type around it. So the macros need to find only a few tokens (`async`, `fn`, the name, the parameters, the
//! body), and no parser of the whole language.

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

/// Runs an `async fn main` on a new event loop.
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, Kind::Main).unwrap_or_else(|error| error.into_tokens())
}

/// Runs an `async fn` as a test on a new event loop.
#[proc_macro_attribute]
pub fn test(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, Kind::Test).unwrap_or_else(|error| error.into_tokens())
}

/// Removes `mut` and `ref` from a pattern, so that it can be matched against a reference.
#[doc(hidden)]
#[proc_macro]
pub fn by_reference(pattern: TokenStream) -> TokenStream {
    pattern
        .into_iter()
        .filter_map(|token| match token {
            TokenTree::Ident(word) if matches!(word.to_string().as_str(), "mut" | "ref") => None,
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), by_reference(group.stream()));
                inner.set_span(group.span());
                Some(inner.into())
            }
            token => Some(token),
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Main,
    Test,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Main => "main",
            Kind::Test => "test",
        }
    }
}

/// An error that the compiler shows at `span`.
struct Error {
    span: Span,
    message: String,
}

impl Error {
    fn new(span: Span, message: impl Into<String>) -> Error {
        let message = message.into();
        Error { span, message }
    }

    /// `::core::compile_error!("...")`, with every token at the span of the error.
    fn into_tokens(self) -> TokenStream {
        let punct = |character, spacing| {
            let mut punct = Punct::new(character, spacing);
            punct.set_span(self.span);
            TokenTree::from(punct)
        };
        let ident = |name| TokenTree::from(Ident::new(name, self.span));
        let mut text = Literal::string(&self.message);
        text.set_span(self.span);
        let mut argument = Group::new(Delimiter::Brace, TokenTree::from(text).into());
        argument.set_span(self.span);
        TokenStream::from_iter([
            punct(':', Spacing::Joint),
            punct(':', Spacing::Alone),
            ident("core"),
            punct(':', Spacing::Joint),
            punct(':', Spacing::Alone),
            ident("compile_error"),
            punct('!', Spacing::Alone),
            argument.into(),
        ])
    }
}

/// The options of an attribute.
struct Options {
    /// The name of a driver, as a literal.
    driver: Option<TokenTree>,
    virtual_clock: bool,
    /// The path of the crate `windlass`.
    krate: TokenStream,
}

fn options(tokens: TokenStream, kind: Kind) -> Result<Options, Error> {
    let mut options = Options {
        driver: None,
        virtual_clock: false,
        krate: "::windlass".parse().expect("a path"),
    };
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(name) = &token else {
            return Err(Error::new(
                token.span(),
                "expected an option: `driver = \"...\"` or `virtual_clock`",
            ));
        };
        let value = match tokens.peek() {
            Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => {
                let equals = tokens.next().expect("it was peeked").span();
                Some(
                    tokens
                        .next()
                        .ok_or_else(|| Error::new(equals, "expected a value after `=`"))?,
                )
            }
            _ => None,
        };
        match (name.to_string().as_str(), value) {
            ("driver", Some(value)) => {
                check_driver(&value)?;
                options.driver = Some(value);
            }
            ("driver", None) => return Err(Error::new(name.span(), "write `driver = \"reactor\"`")),
            ("virtual_clock", None) => options.virtual_clock = true,
            ("virtual_clock", Some(value)) => match value.to_string().as_str() {
                "true" => options.virtual_clock = true,
                "false" => options.virtual_clock = false,
                _ => return Err(Error::new(value.span(), "expected `true` or `false`")),
            },
            ("crate", Some(value)) => {
                let path = value.to_string();
                let path = path.trim_matches('"').parse();
                options.krate = path.map_err(|_| Error::new(value.span(), "expected a path in quotes"))?;
            }
            ("start_paused", _) => {
                return Err(Error::new(
                    name.span(),
                    "the virtual clock of windlass is the option `virtual_clock`",
                ));
            }
            ("flavor" | "worker_threads" | "unhandled_panic", _) => {
                let message =
                    "windlass has one thread per loop: remove this option, or start more loops, one per thread";
                return Err(Error::new(name.span(), message));
            }
            (other, _) => {
                let message = format!(
                    "`#[windlass::{}]` has no option `{other}`; it has `driver = \"...\"`, `virtual_clock` and `crate = \"...\"`",
                    kind.name()
                );
                return Err(Error::new(name.span(), message));
            }
        }
        match tokens.next() {
            None => {}
            Some(TokenTree::Punct(punct)) if punct.as_char() == ',' => {}
            Some(other) => return Err(Error::new(other.span(), "expected a comma between options")),
        }
    }
    if let (Some(driver), true) = (&options.driver, options.virtual_clock)
        && driver.to_string() != "\"null\""
    {
        return Err(Error::new(
            driver.span(),
            "only the driver \"null\" has a virtual clock: omit `driver`",
        ));
    }
    Ok(options)
}

fn check_driver(value: &TokenTree) -> Result<(), Error> {
    match value.to_string().as_str() {
        "\"auto\"" | "\"proactor\"" | "\"reactor\"" | "\"null\"" => Ok(()),
        "\"io_uring\"" | "\"uring\"" | "\"iocp\"" => {
            Err(Error::new(value.span(), "this driver is called \"proactor\""))
        }
        "\"epoll\"" | "\"kqueue\"" | "\"mio\"" => Err(Error::new(value.span(), "this driver is called \"reactor\"")),
        _ => Err(Error::new(
            value.span(),
            "expected \"auto\", \"proactor\", \"reactor\" or \"null\", in quotes",
        )),
    }
}

/// The parts of an `async fn`.
struct Function {
    /// Attributes and visibility.
    before: Vec<TokenTree>,
    /// `unsafe` and other qualifiers are rejected, so this is `async`.
    is_async: bool,
    keyword: Span,
    name: Ident,
    parameters: Group,
    /// From the arrow to the last token before the body.
    output: Vec<TokenTree>,
    body: Group,
}

fn function(item: TokenStream, kind: Kind) -> Result<Function, Error> {
    let expects = || {
        Error::new(
            Span::call_site(),
            format!("`#[windlass::{}]` expects an `async fn`", kind.name()),
        )
    };
    let mut tokens = item.into_iter().peekable();
    let (mut before, mut is_async) = (Vec::new(), false);
    let keyword = loop {
        match tokens.next().ok_or_else(expects)? {
            TokenTree::Ident(word) => match word.to_string().as_str() {
                "fn" => break word.span(),
                "async" => is_async = true,
                "unsafe" | "extern" | "const" => {
                    return Err(Error::new(
                        word.span(),
                        format!("expected a plain `async fn`, without `{word}`"),
                    ));
                }
                "struct" | "enum" | "mod" | "impl" | "trait" | "static" | "use" | "type" => {
                    let message = format!("`#[windlass::{}]` belongs to an `async fn`", kind.name());
                    return Err(Error::new(word.span(), message));
                }
                _ => before.push(word.into()),
            },
            token => before.push(token),
        }
    };
    let Some(TokenTree::Ident(name)) = tokens.next() else {
        return Err(expects());
    };
    let parameters = match tokens.next() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => group,
        Some(TokenTree::Punct(punct)) if punct.as_char() == '<' => {
            return Err(Error::new(
                punct.span(),
                "this function cannot be generic: no caller chooses the types",
            ));
        }
        _ => return Err(expects()),
    };
    let mut rest: Vec<TokenTree> = tokens.collect();
    match rest.pop() {
        Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => Ok(Function {
            before,
            is_async,
            keyword,
            name,
            parameters,
            output: rest,
            body,
        }),
        _ => Err(expects()),
    }
}

fn expand(options_tokens: TokenStream, item: TokenStream, kind: Kind) -> Result<TokenStream, Error> {
    let options = options(options_tokens, kind)?;
    let function = function(item, kind)?;
    if !function.is_async {
        let message = "write `async fn`: the attribute runs the function on an event loop";
        return Err(Error::new(function.keyword, message));
    }
    if let Some(parameter) = function.parameters.stream().into_iter().next() {
        let message = match kind {
            Kind::Main => "`main` takes no parameters: use `std::env::args()`",
            Kind::Test => "a test takes no parameters",
        };
        return Err(Error::new(parameter.span(), message));
    }
    let Options {
        driver,
        virtual_clock,
        krate,
    } = options;
    let driver = match (driver, virtual_clock) {
        (Some(driver), _) => format!("::core::option::Option::Some({driver})"),
        (None, true) => "::core::option::Option::Some(\"null\")".to_owned(),
        (None, false) => "::core::option::Option::None".to_owned(),
    };
    let source = |text: String| -> TokenStream { text.parse().expect("valid tokens") };

    // async fn NAME() -> OUTPUT { BODY }
    let mut inner = source("async fn".to_owned());
    inner.extend([
        TokenTree::from(function.name.clone()),
        function.parameters.clone().into(),
    ]);
    inner.extend(function.output.clone());
    inner.extend([TokenTree::from(function.body)]);
    // CRATE::__private::run_attribute(DRIVER, NAME())
    inner.extend(krate);
    inner.extend(source(format!(
        "::__private::run_attribute({driver}, {}())",
        function.name
    )));

    let mut outer = TokenStream::new();
    if kind == Kind::Test {
        outer.extend(source("#[::core::prelude::v1::test]".to_owned()));
    }
    outer.extend(function.before);
    outer.extend([
        TokenTree::from(Ident::new("fn", function.keyword)),
        function.name.into(),
        function.parameters.into(),
    ]);
    outer.extend(function.output);
    outer.extend([TokenTree::from(Group::new(Delimiter::Brace, inner))]);
    Ok(outer)
}

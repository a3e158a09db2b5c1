//! `select!`, `join!` and `try_join!`, with tokio's syntax, and the function that the attributes expand to.

/// Waits for the first of several futures, and runs the code of its branch: tokio's `select!`.
///
/// A branch is `pattern = future => handler`, optionally with a condition: `pattern = future, if condition => handler`.
/// The macro must be used inside of async code. It works in these steps:
///
/// 1. It evaluates all conditions, then all future expressions, also those of branches whose condition is false.
/// 2. It polls the futures of the branches whose condition is true. When one completes and its output matches the pattern,
///    that branch wins. If the output does not match, the branch is disabled and the others go on.
/// 3. It drops all futures, which cancels those that have not completed; a cancelled read or accept loses no data. If
///    one contains a [`group`](fn@crate::task::group) or a [`JoinSet`](crate::task::JoinSet), this waits until their
///    children have ended. To keep a future for the next `select!`, pass a pinned `&mut`.
/// 4. It runs the handler, which may use `await`, `?`, `break`, `continue` and `return`, and may borrow what the
///    futures had borrowed. Its value is the value of the `select!`.
///
/// If all branches are disabled, the value is that of the branch `else => handler`; without one, `select!` panics.
///
/// Each poll starts with another branch, so that a branch that is always ready cannot starve the others. With `biased;`
/// as the first token, branches are polled from top to bottom. There can be up to 32 branches.
///
/// ```
/// use std::time::Duration;
/// use windlass::{select, sync::Queue, time::sleep};
///
/// windlass::run(async {
///     let queue = Queue::unbounded();
///     for word in ["ready", "steady"] {
///         queue.try_put(word).unwrap();
///     }
///     queue.close();
///     let mut words = Vec::new();
///     let mut deadline = std::pin::pin!(sleep(Duration::from_secs(60)));
///     loop {
///         select! {
///             biased;
///             Ok(word) = queue.get(), if words.len() < 100 => words.push(word),
///             () = &mut deadline, if words.is_empty() => break,
///             else => break, // the queue is closed
///         }
///     }
///     assert_eq!(words, ["ready", "steady"]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A pattern that can fail to match and contains `mut` or `ref`, such as `Some(mut line)`, needs the feature `macros`.
///
/// To wait for two futures without a macro, see [`task::select`](crate::task::select); for any number of futures of one
/// type, [`task::race`](crate::task::race).
#[macro_export]
macro_rules! select {
    () => {
        compile_error!("`select!` needs at least one branch: `pattern = future => handler`")
    };
    (biased; $($branches:tt)+) => {
        $crate::__select!(@parse (true) [] [] $($branches)+)
    };
    ($($branches:tt)+) => {
        $crate::__select!(@parse (false) [] [] $($branches)+)
    };
}

/// `@parse (biased) [branches in order] [branches in reverse] tokens`; a branch is `{pattern, future, condition, handler}`.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // The end, with and without `else`.
    (@parse $biased:tt [$($branch:tt)+] $reverse:tt) => {
        $crate::__select!(@run $biased [$($branch)+] $reverse {
            ::core::panic!("all branches of `select!` are disabled, and it has no `else` branch")
        })
    };
    (@parse $biased:tt [$($branch:tt)*] $reverse:tt else => $else:expr $(,)?) => {
        $crate::__select!(@run $biased [$($branch)*] $reverse { $else })
    };
    // The names of other libraries' macros.
    (@parse $biased:tt $branches:tt $reverse:tt complete => $($rest:tt)*) => {
        compile_error!("write `else =>`, which runs if no branch is enabled, instead of `complete =>`")
    };
    (@parse $biased:tt $branches:tt $reverse:tt default => $($rest:tt)*) => {
        compile_error!("there is no `default =>`: poll once with `futures::poll!`, or add a branch `_ = yield_now() =>` after `biased;`")
    };
    // A branch whose handler is a block: the comma is optional.
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:block, $($rest:tt)*) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, $condition}]
            [{$pattern, $handler} $($reverse)*] $($rest)*)
    };
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr => $handler:block, $($rest:tt)*) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, true}]
            [{$pattern, $handler} $($reverse)*] $($rest)*)
    };
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:block $($rest:tt)*) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, $condition}]
            [{$pattern, $handler} $($reverse)*] $($rest)*)
    };
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr => $handler:block $($rest:tt)*) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, true}]
            [{$pattern, $handler} $($reverse)*] $($rest)*)
    };
    // A branch whose handler is another expression.
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, $condition}]
            [{$pattern, $handler} $($reverse)*] $($($rest)*)?)
    };
    (@parse $biased:tt [$($branch:tt)*] [$($reverse:tt)*]
        $pattern:pat = $future:expr => $handler:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@parse $biased [$($branch)* {$pattern, $future, true}]
            [{$pattern, $handler} $($reverse)*] $($($rest)*)?)
    };

    (@run ($biased:tt) [] [] { $else:expr }) => { $else };
    (@run ($biased:tt) [$({$pattern:pat, $future:expr, $condition:expr})+] $reverse:tt { $else:expr }) => {{
        // All conditions are evaluated before the futures, which may borrow what the conditions read. A `let` of its
        // own, so that temporaries of the expressions are gone when the handler runs.
        let enabled = [$($condition),+];
        let chosen = $crate::__private::select_arms(
            $crate::__private::NoArm
            $(.and($future, |output| {
                #[allow(unused_variables, unused_mut, unused_assignments, unreachable_patterns)]
                let is_match = match output {
                    $crate::__select_pattern!($pattern) => true,
                    _ => false,
                };
                is_match
            }))+,
            enabled,
            $biased,
        ).await;
        match chosen {
            ::core::option::Option::Some(choice) => $crate::__select!(@dispatch choice $reverse),
            ::core::option::Option::None => $else,
        }
    }};

    // The last branch is the outermost choice.
    (@dispatch $choice:ident [{$pattern:pat, $handler:expr} $($reverse:tt)*]) => {
        match $choice {
            $crate::__private::Choice::This(output) => match output {
                $pattern => $handler,
                #[allow(unreachable_patterns)]
                _ => ::core::unreachable!("the output was matched before"),
            },
            $crate::__private::Choice::Earlier(choice) => $crate::__select!(@dispatch choice [$($reverse)*]),
        }
    };
    (@dispatch $choice:ident []) => { match $choice {} };
}

/// A pattern that is matched against a reference to the output.
#[cfg(feature = "macros")]
#[doc(hidden)]
#[macro_export]
macro_rules! __select_pattern {
    ($pattern:pat) => {
        $crate::__private::by_reference!($pattern)
    };
}

/// A pattern that is matched against a reference to the output.
#[cfg(not(feature = "macros"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __select_pattern {
    ($pattern:pat) => {
        $pattern
    };
}

/// Waits for all of several futures and returns their outputs as a tuple: tokio's `join!`.
///
/// The futures run concurrently in this task. There can be up to 16. Each poll starts with another future; with `biased;`
/// as the first token, always with the first. See [`task::join`](crate::task::join()) for a function.
///
/// ```
/// windlass::run(async {
///     let (number, text) = windlass::join!(async { 1 }, async { "one" });
///     assert_eq!((number, text), (1, "one"));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[macro_export]
macro_rules! join {
    (biased; $($future:expr),+ $(,)?) => {
        $crate::task::join(($($future,)+)).biased().await
    };
    ($($future:expr),+ $(,)?) => {
        $crate::task::join(($($future,)+)).await
    };
    ($(,)?) => { () };
}

/// Waits for all of several futures that return a `Result`, and returns their values as a tuple, or the first error:
/// tokio's `try_join!`.
///
/// After an error the other futures are dropped. There can be up to 16. See [`task::try_join`](crate::task::try_join())
/// for a function.
///
/// ```
/// windlass::run(async {
///     let both = windlass::try_join!(async { "1".parse::<u8>() }, async { "-2".parse::<i64>() });
///     assert_eq!(both, Ok((1, -2)));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[macro_export]
macro_rules! try_join {
    (biased; $($future:expr),+ $(,)?) => {
        $crate::task::try_join(($($future,)+)).biased().await
    };
    ($($future:expr),+ $(,)?) => {
        $crate::task::try_join(($($future,)+)).await
    };
}

/// Runs the function below `#[windlass::main]` or `#[windlass::test]`.
#[cfg(feature = "macros")]
#[track_caller]
pub fn run_attribute<F: Future>(driver: Option<&str>, future: F) -> F::Output {
    let mut builder = crate::Builder::new();
    if let Some(name) = driver {
        builder = builder.driver(name.parse().expect("the attribute accepts only names of drivers"));
    }
    let run = |event_loop: crate::EventLoop| event_loop.run_until_complete(future);
    match builder.build().and_then(run) {
        Ok(output) => output,
        Err(error) => panic!("the event loop failed: {error}"),
    }
}

//! Fetches a page over TLS and prints it.
//!
//! `cargo run --release --features tls --example https_get -- [--ca FILE] https://example.org/`. Without `--ca` the
//! system's certificate authorities are trusted. A response that ends without close_notify is an error.

#[path = "support/mod.rs"]
mod support;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use support::outln;
use windlass::io::{AsyncRead, AsyncWrite};
use windlass::net::TcpStream;
use windlass::time::timeout;
use windlass::tls::TlsConnector;
use windlass::tls::rustls::pki_types::{CertificateDer, pem::PemObject};
use windlass::tls::rustls::{ClientConfig, RootCertStore};
use windlass::{Builder, DriverChoice};

const USAGE: &str =
    "usage: https_get [--ca PEM] [--driver auto|proactor|reactor] [--connect HOST:PORT] https://HOST[:PORT][/PATH]";

/// Where systems keep their trusted certificate authorities.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// The maximum size of a page.
const LIMIT: usize = 64 << 20;

struct Options {
    ca: Option<PathBuf>,
    driver: DriverChoice,
    connect: Option<String>,
    /// Without brackets.
    host: String,
    port: u16,
    path: String,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            outln!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", options.host);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let config = ClientConfig::builder()
        .with_root_certificates(roots(options)?)
        .with_no_client_auth();
    let event_loop = Builder::new().driver(options.driver).build()?;
    let fetched = event_loop.run_until_complete(async {
        let fetching = fetch(TlsConnector::new(config), options);
        timeout(Duration::from_secs(60), fetching)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    })?;
    Ok(fetched?)
}

/// The trusted certificate authorities.
fn roots(options: &Options) -> Result<RootCertStore, Box<dyn Error>> {
    let system = || SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
    let path = options.ca.clone().or_else(system);
    let path = path.ok_or("the system's certificate authorities were not found: use --ca FILE")?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&path)? {
        // Certificates that rustls rejects are skipped: system stores contain some.
        let _ = roots.add(certificate?);
    }
    match roots.is_empty() {
        true => Err(format!("{} contains no certificate", path.display()).into()),
        false => Ok(roots),
    }
}

async fn fetch(connector: TlsConnector, options: &Options) -> io::Result<()> {
    let Options { host, port, path, .. } = options;
    let stream = match &options.connect {
        Some(addr) => TcpStream::connect(addr.as_str()).await?,
        None => TcpStream::connect((host.as_str(), *port)).await?,
    };
    let mut stream = connector.connect(host.as_str(), stream).await?;
    let version = stream.protocol_version().and_then(|version| version.as_str());
    eprintln!("{}", version.unwrap_or("an unknown version of TLS"));
    // As in the URL: IPv6 in brackets, and the port unless it is the default.
    let mut name = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.clone(),
    };
    if *port != 443 {
        name += &format!(":{port}");
    }
    let request = format!("GET {path} HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(request).await.0?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer, LIMIT).await?;
    // The server may have closed the connection already.
    let _ = stream.shutdown().await;
    let mut out = windlass::io::stdout();
    out.write_all(answer).await.0?;
    out.flush().await
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut ca, mut driver, mut connect, mut url) = (None, DriverChoice::Auto, None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--ca" => ca = Some(value()?.into()),
            "--driver" => driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--connect" => connect = Some(value()?),
            "--help" | "-h" => return Ok(None),
            other if other.starts_with('-') => return Err(format!("unknown option {other}")),
            _ => url = Some(arg),
        }
    }
    let url = url.ok_or("no URL given")?;
    let rest = url
        .strip_prefix("https://")
        .ok_or(format!("{url} does not start with https://"))?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // The colons of an IPv6 address are in brackets.
    let (host, rest) = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed
            .split_once(']')
            .ok_or(format!("{authority} has no closing bracket"))?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| format!("{port} is not a port"))?,
        None if rest.is_empty() => 443,
        None => return Err(format!("{authority} is not a host")),
    };
    Ok(Some(Options {
        ca,
        driver,
        connect,
        host: host.to_owned(),
        port,
        path: if path.is_empty() { "/".into() } else { path.to_owned() },
    }))
}

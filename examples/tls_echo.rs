//! An echo server with TLS.
//!
//! `cargo run --release --features tls --example tls_echo -- --write-ca /tmp/ca.pem`, then
//! `openssl s_client -connect 127.0.0.1:7778 -servername localhost -CAfile /tmp/ca.pem`.
//!
//! Without `--cert` and `--key` it creates a certificate authority and a certificate for `localhost` and `127.0.0.1`,
//! valid for this run. On Ctrl-C or SIGTERM it ends every connection with close_notify; clients that do not read it are
//! disconnected after `--grace` seconds.

#[path = "support/mod.rs"]
mod support;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use support::{accept_failed, outln, reap};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::{CancelToken, JoinSet};
use windlass::time::timeout;
use windlass::tls::rustls::ServerConfig;
use windlass::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use windlass::tls::{TlsAcceptor, TlsStream};
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: tls_echo [--listen HOST:PORT] [--driver auto|proactor|reactor] \
                     [--cert PEM --key PEM | --write-ca PEM] [--grace SECONDS]";

/// The time limit for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

struct Options {
    listen: String,
    driver: DriverChoice,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    write_ca: Option<PathBuf>,
    grace: Duration,
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
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (chain, key) = identity(options)?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"echo".to_vec()];
    let event_loop = Builder::new().driver(options.driver).build()?;
    outln!("driver: {}", event_loop.describe());
    Ok(event_loop.run_until_complete(serve(options, TlsAcceptor::new(config)))??)
}

async fn serve(options: &Options, acceptor: TlsAcceptor) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen.as_str()).await?;
    let mut shutdown = windlass::signal::shutdown()?;
    outln!("listening on {}", listener.local_addr()?);
    let stop = CancelToken::new();
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        let (acceptor, stop) = (acceptor.clone(), stop.clone());
        reap(&mut connections);
        connections.spawn(async move {
            let handshake = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(result) => result,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let result = match handshake {
                Ok(stream) => echo(stream, stop).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                eprintln!("{peer}: {error}");
            }
        });
    }
    // From here on, new connections are refused.
    drop(listener);
    stop.cancel();
    let drained = timeout(options.grace, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_ok() {
        outln!("all connections closed");
        return Ok(());
    }
    // A client that does not read its echo does not get its close_notify either.
    outln!("grace period over, connections cut: {}", connections.len());
    connections.shutdown().await;
    Ok(())
}

async fn echo(stream: TlsStream<TcpStream>, stop: CancelToken) -> io::Result<()> {
    // A cancelled read loses nothing.
    while let Some(received) = stop.run_until_cancelled(stream.read_managed()).await {
        let bytes = received?;
        if bytes.is_empty() {
            break;
        }
        stream.write_all(bytes).await.0?;
    }
    stream.shutdown().await
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate chain and key: from the files given, or generated.
fn identity(options: &Options) -> Result<Identity, Box<dyn Error>> {
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
        return Ok((chain, PrivateKeyDer::from_pem_file(key)?));
    }
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "tls_echo's authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    if let Some(path) = &options.write_ca {
        std::fs::write(path, authority.pem())?;
    }
    let key = KeyPair::generate()?;
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    Ok((
        vec![certificate.der().clone()],
        PrivateKeyDer::try_from(key.serialize_der())?,
    ))
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        listen: "127.0.0.1:7778".into(),
        driver: DriverChoice::Auto,
        cert: None,
        key: None,
        write_ca: None,
        grace: Duration::from_secs(5),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--listen" => options.listen = value()?,
            "--driver" => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--cert" => options.cert = Some(value()?.into()),
            "--key" => options.key = Some(value()?.into()),
            "--write-ca" => options.write_ca = Some(value()?.into()),
            "--grace" => {
                let seconds = value()?
                    .parse()
                    .ok()
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                options.grace = seconds.ok_or("--grace needs a number of seconds")?;
            }
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}")),
        }
    }
    match options.cert.is_some() == options.key.is_some() {
        true => Ok(Some(options)),
        false => Err("--cert and --key must be given together".into()),
    }
}

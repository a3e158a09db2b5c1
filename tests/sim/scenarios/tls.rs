//! TLS over connections that read and write as little as one byte at a time, break, and end too early.
//!
//! A client downloads a file whose length it does not know: the end of the stream is the end of the file. It repeats a
//! download that fails, with the session of the last one. A download that succeeds is complete, since TLS tells an end from
//! a connection that was cut off.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use windlass::net::{TcpListener, TcpStream};
use windlass::rand::Rng;
use windlass::sim::{Chaos, Dist, FaultKind, Link, Sim};
use windlass::time::{sleep, timeout};
use windlass::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass::tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use windlass::tls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The client takes every end of the stream for the end of the file.
    takes_any_end: bool,
    /// The server repeats a write that takes long, on the same connection.
    repeats_writes: bool,
    /// The server closes the connection without ending the stream.
    no_shutdown: bool,
}

/// For a request, and for its handshake.
const PATIENCE: Duration = Duration::from_secs(3);

/// A certificate and its key. Its signatures have one length, as has all that depends on chance in a handshake: so runs
/// differ in what they send, but not in how much.
fn identity() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    static IDENTITY: OnceLock<(CertificateDer<'static>, Vec<u8>)> = OnceLock::new();
    let (certificate, key) = IDENTITY.get_or_init(|| {
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let mut params = CertificateParams::new(["server".to_owned()]).expect("a name");
        params.serial_number = Some(7.into());
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.der().clone(), key.serialize_der())
    });
    let key = PrivateKeyDer::try_from(key.clone()).expect("a key");
    (certificate.clone(), key)
}

/// New for each run: they remember sessions.
fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let (certificate, key) = identity();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("the key fits");
    (Arc::new(client), Arc::new(server))
}

async fn serve(acceptor: TlsAcceptor, file: Rc<Vec<u8>>, bugs: Bugs) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:443").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, file) = (acceptor.clone(), file.clone());
        windlass::spawn(async move {
            // An error ends this connection alone.
            let _ = timeout(PATIENCE, send(stream, acceptor, &file, bugs)).await;
        })
        .detach();
    }
}

/// Sends the file from the requested offset on.
async fn send(stream: TcpStream, acceptor: TlsAcceptor, file: &[u8], bugs: Bugs) -> io::Result<()> {
    let stream = acceptor.accept(stream).await?;
    let (result, offset) = stream.read_exact([0; 4]).await;
    result?;
    let mut rest = &file[u32::from_le_bytes(offset) as usize..];
    let mut rng = Rng::new();
    while !rest.is_empty() {
        let len = rest.len().min(1 + rng.below(8_000) as usize);
        let (part, others) = rest.split_at(len);
        let limit = Duration::from_millis(30);
        while bugs.repeats_writes && timeout(limit, stream.write_all(part.to_vec())).await.is_err() {}
        if !bugs.repeats_writes {
            stream.write_all(part.to_vec()).await.0?;
        }
        rest = others;
    }
    match bugs.no_shutdown {
        true => stream.flush().await,
        false => stream.shutdown().await,
    }
}

/// Downloads the file from this offset on.
async fn download(connector: &TlsConnector, offset: usize, bugs: Bugs) -> io::Result<(Vec<u8>, bool)> {
    let stream = TcpStream::connect("server:443").await?;
    let stream = connector.connect("server", stream).await?;
    stream.write_all((offset as u32).to_le_bytes().to_vec()).await.0?;
    let mut received = Vec::new();
    loop {
        match read(&stream).await {
            Ok(bytes) if bytes.is_empty() => return Ok((received, stream.is_resumed())),
            Ok(bytes) => received.extend(bytes),
            Err(error) if bugs.takes_any_end && error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok((received, false));
            }
            Err(error) => return Err(error),
        }
    }
}

async fn read(stream: &TlsStream<TcpStream>) -> io::Result<Vec<u8>> {
    let (result, mut bytes) = stream.read(vec![0; 700]).await;
    bytes.truncate(result?);
    Ok(bytes)
}

#[derive(Default)]
struct Done {
    downloads: Cell<u64>,
    failed: Cell<u64>,
    resumed: Cell<u64>,
}

async fn download_all(downloads: u64, connector: TlsConnector, file: Rc<Vec<u8>>, done: Rc<Done>, bugs: Bugs) {
    let mut rng = Rng::new();
    for _ in 0..downloads {
        let offset = rng.below(file.len() as u64 + 1) as usize;
        loop {
            match timeout(PATIENCE, download(&connector, offset, bugs)).await {
                Ok(Ok((bytes, is_resumed))) => {
                    assert!(bytes == file[offset..], "a download succeeded with the wrong contents");
                    done.resumed.set(done.resumed.get() + u64::from(is_resumed));
                    break;
                }
                Ok(Err(_)) | Err(_) => {
                    done.failed.set(done.failed.get() + 1);
                    sleep(Duration::from_millis(rng.range(10..500))).await;
                }
            }
        }
    }
    done.downloads.set(done.downloads.get() + downloads);
    std::future::pending().await
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let mut rng = sim.rng();
    let downloads = sim.size("downloads", 1..=3);
    let is_slow = rng.chance(0.2);
    let most = if is_slow { 1_000 } else { 20_000 };
    let mut file = vec![0; sim.size("bytes", 0..=most) as usize];
    rng.fill(&mut file);
    let file = Rc::new(file);
    let latency = Dist::uniform(Duration::from_micros(50), Duration::from_millis(rng.range(1..20)));
    let mut link = Link::new().latency(latency).short_counts(rng.unit());
    if is_slow {
        link = link.max_count(rng.range(1..=16) as usize);
    }
    sim.links(link);
    let (client, server) = configs();
    sim.host("server").start({
        let file = file.clone();
        move || serve(TlsAcceptor::new(server.clone()), file.clone(), bugs)
    });
    let done = Rc::new(Done::default());
    sim.host("client").start({
        let done = done.clone();
        move || {
            download_all(
                downloads,
                TlsConnector::new(client.clone()),
                file.clone(),
                done.clone(),
                bugs,
            )
        }
    });
    let kinds = [FaultKind::Kill, FaultKind::Cut, FaultKind::Slow, FaultKind::Pause];
    sim.chaos(
        Chaos::only(kinds)
            .every(Duration::from_millis(600))
            .during(Duration::from_secs(2)),
    );
    for _ in 0..sim.size("resets", 0..=6) {
        sleep(Duration::from_millis(rng.range(0..400))).await;
        sim.reset("client", "server");
    }
    sim.calm();
    let finished = sim.within(Duration::from_secs(30), async {
        while done.downloads.get() < downloads {
            sleep(Duration::from_millis(100)).await;
        }
        TestResult::Ok(())
    });
    assert!(finished.await.is_ok(), "a download never ends");
    sim.sometimes("a download has failed", done.failed.get() > 0);
    sim.sometimes("a session was resumed", done.resumed.get() > 0);
    Ok(())
}

#[test]
fn a_download_that_succeeds_is_complete() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_client_that_takes_any_end_is_found() {
    finds("succeeded with the wrong contents", |sim| {
        let bugs = Bugs {
            takes_any_end: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_write_after_a_cancelled_one_is_found() {
    finds("succeeded with the wrong contents", |sim| {
        let bugs = Bugs {
            repeats_writes: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_stream_that_is_not_ended_is_found() {
    finds("a download never ends", |sim| {
        let bugs = Bugs {
            no_shutdown: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

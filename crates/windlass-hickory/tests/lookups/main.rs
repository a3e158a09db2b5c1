//! Lookups against a name server of the test, on every driver.

mod server;
mod unbound;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use windlass::net::TcpListener;
use windlass::task::JoinSet;
use windlass::{Builder, DriverChoice};
use windlass_hickory::hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use windlass_hickory::hickory_resolver::{Resolver as HickoryResolver, ResolverBuilder};
use windlass_hickory::{Provider, Resolver};

use self::server::{Server, Transport};

/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(300);

/// Runs a test on each driver that this machine has.
fn on_every_driver<F: Future>(test: impl Fn() -> F) {
    on(
        &[DriverChoice::Proactor, DriverChoice::Reactor, DriverChoice::Null],
        test,
    );
}

/// Runs a test on each driver with a kernel: for servers in other processes.
fn on_every_kernel_driver<F: Future>(test: impl Fn() -> F) {
    on(&[DriverChoice::Proactor, DriverChoice::Reactor], test);
}

fn on<F: Future>(choices: &[DriverChoice], test: impl Fn() -> F) {
    let mut tested = 0;
    for &choice in choices {
        let event_loop = match Builder::new().driver(choice).build() {
            Ok(event_loop) => event_loop,
            Err(error) => {
                println!("skipped {choice:?}: {error}");
                continue;
            }
        };
        let (done, is_done) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            if let Err(mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(HANG) {
                eprintln!("the test hangs on {choice:?}");
                process::abort();
            }
        });
        event_loop.run_until_complete(test()).expect("the loop runs");
        event_loop.close();
        drop(done);
        watchdog.join().expect("the watchdog ends");
        tested += 1;
    }
    assert!(tested > 0, "no driver was available");
}

/// A resolver that asks one server, by UDP first, for IPv4 addresses.
fn builder(addr: SocketAddr) -> ResolverBuilder<Provider> {
    let (mut udp, mut tcp) = (ConnectionConfig::udp(), ConnectionConfig::tcp());
    (udp.port, tcp.port) = (addr.port(), addr.port());
    let server = NameServerConfig::new(addr.ip(), true, vec![udp, tcp]);
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut builder = HickoryResolver::builder_with_config(config, Provider);
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4Only;
    // Longer than a busy machine takes; the tests that lose answers rely on retries within it.
    options.timeout = Duration::from_secs(60);
    builder
}

fn resolver(addr: SocketAddr) -> Resolver {
    builder(addr).build().expect("the configuration is valid").into()
}

fn v4(addr: [u8; 4], port: u16) -> SocketAddr {
    (Ipv4Addr::from(addr), port).into()
}

#[test]
fn an_address_over_udp() {
    on_every_driver(async || {
        let server = Server::start().await;
        let resolver = resolver(server.addr);
        assert_eq!(resolver.lookup("one.test.", 80).await.unwrap(), [v4([10, 0, 0, 1], 80)]);
        assert!(server.count(Transport::Udp, "one.test.") >= 1);
        assert_eq!(server.count(Transport::Tcp, "one.test."), 0);
    });
}

#[test]
fn other_records() {
    on_every_driver(async || {
        let server = Server::start().await;
        let found = resolver(server.addr).txt_lookup("text.test.").await.unwrap();
        let texts: Vec<_> = found.answers().iter().map(|record| record.data.to_string()).collect();
        assert_eq!(texts, ["some text"]);
    });
}

#[test]
fn a_truncated_answer_is_asked_for_by_tcp() {
    on_every_driver(async || {
        let server = Server::start().await;
        let addrs = resolver(server.addr).lookup("big.test.", 80).await.unwrap();
        assert_eq!(addrs.len(), server::BIG);
        assert!(server.count(Transport::Udp, "big.test.") >= 1);
        assert!(server.count(Transport::Tcp, "big.test.") >= 1);
    });
}

#[test]
fn concurrent_lookups_over_tcp() {
    on_every_driver(async || {
        let server = Server::start().await;
        let mut builder = builder(server.addr);
        builder.options_mut().max_active_requests = 100;
        let resolver = Resolver::from(builder.build().unwrap());
        let mut lookups = JoinSet::new();
        for index in 0..64_u8 {
            let resolver = resolver.clone();
            lookups.spawn(async move {
                let addrs = resolver.lookup(&format!("n{index}.big.test."), 1).await.unwrap();
                assert_eq!(addrs.len(), server::BIG);
            });
        }
        while let Some(lookup) = lookups.join_next().await {
            lookup.unwrap();
        }
    });
}

#[test]
fn lost_answers_are_asked_for_again() {
    on_every_driver(async || {
        let server = Server::start().await;
        server.lose("lost.test.", 2);
        let addrs = resolver(server.addr).lookup("lost.test.", 80).await.unwrap();
        assert_eq!(addrs.len(), 1);
        assert!(server.count(Transport::Udp, "lost.test.") >= 3);
    });
}

#[test]
fn a_server_that_never_answers_is_a_timeout() {
    on_every_driver(async || {
        let server = Server::start().await;
        server.lose("lost.test.", usize::MAX);
        let mut builder = builder(server.addr);
        (builder.options_mut().timeout, builder.options_mut().attempts) = (Duration::from_millis(600), 1);
        let error = Resolver::from(builder.build().unwrap())
            .lookup("lost.test.", 80)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    });
}

#[test]
fn a_thousand_lookups_at_once() {
    on_every_driver(async || {
        let server = Server::start().await;
        let resolver = resolver(server.addr);
        let mut lookups = JoinSet::new();
        for index in 0..1_000_u16 {
            let resolver = resolver.clone();
            lookups.spawn(async move {
                let [high, low] = index.to_be_bytes();
                let addrs = resolver.lookup(&format!("n{index}.many.test."), 80).await.unwrap();
                assert_eq!(addrs, [v4([10, 1, high, low], 80)]);
            });
        }
        let mut ended = 0;
        while let Some(lookup) = lookups.join_next().await {
            lookup.unwrap();
            ended += 1;
        }
        assert_eq!(ended, 1_000);
        assert!(server.total() >= 1_000);
    });
}

#[test]
fn a_name_that_does_not_exist() {
    on_every_driver(async || {
        let server = Server::start().await;
        let resolver = resolver(server.addr);
        let error = resolver.lookup("missing.test.", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        assert!(error.to_string().starts_with("look up missing.test.: "), "{error}");
        // Negative answers are cached too.
        let asked = server.total();
        let error = resolver.lookup("missing.test.", 80).await.unwrap_err();
        assert_eq!((error.kind(), server.total()), (io::ErrorKind::NotFound, asked));
        // A name without addresses.
        let error = resolver.lookup("text.test.", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn cached_answers_are_not_asked_for_again() {
    on_every_driver(async || {
        let server = Server::start().await;
        let resolver = resolver(server.addr);
        resolver.lookup("one.test.", 80).await.unwrap();
        let asked = server.total();
        let mut lookups = JoinSet::new();
        for _ in 0..100 {
            let resolver = resolver.clone();
            lookups.spawn(async move { resolver.lookup("one.test.", 80).await.unwrap() });
        }
        while let Some(addrs) = lookups.join_next().await {
            assert_eq!(addrs.unwrap(), [v4([10, 0, 0, 1], 80)]);
        }
        assert_eq!(server.total(), asked);
        resolver.clear_cache();
        resolver.lookup("one.test.", 80).await.unwrap();
        assert!(server.total() > asked);
    });
}

#[test]
fn dropped_lookups_leave_nothing_behind() {
    on_every_driver(async || {
        let server = Server::start().await;
        server.lose("lost.test.", usize::MAX);
        let resolver = resolver(server.addr);
        for _ in 0..20 {
            let mut lookup = Box::pin(resolver.lookup("lost.test.", 80));
            let asked = server.total();
            let arrived = async {
                while server.total() == asked {
                    windlass::task::yield_now().await;
                }
            };
            windlass::task::select(&mut lookup, arrived).await;
            drop(lookup);
        }
        assert_eq!(resolver.lookup("one.test.", 80).await.unwrap().len(), 1);
    });
}

#[test]
fn connect_takes_the_address_that_answers() {
    on_every_driver(async || {
        let server = Server::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut builder = builder(server.addr);
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        let resolver = Resolver::from(builder.build().unwrap());
        // Nothing listens at its IPv6 address.
        let stream = resolver.connect("both.test.", port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        let accepted = listener.accept().await.unwrap().0;
        accepted.write_all("hello").await.0.unwrap();
        assert_eq!(&*stream.read_managed().await.unwrap(), b"hello");
        let error = resolver.connect("missing.test.", port).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn the_system_configuration_is_read() {
    on_every_kernel_driver(async || match Resolver::from_system() {
        Ok(resolver) => {
            let addrs = resolver.lookup("localhost", 80).await.unwrap();
            assert!(addrs.iter().all(|addr| addr.ip().is_loopback()), "{addrs:?}");
        }
        Err(error) => println!("skipped: {error}"),
    });
}

#[test]
fn other_loops_share_a_resolver() {
    on_every_kernel_driver(async || {
        let server = Server::start().await;
        let resolver = resolver(server.addr);
        let other = resolver.clone();
        let addrs = windlass::spawn_blocking(move || {
            windlass::run(async move {
                let mut addrs = other.lookup("one.test.", 80).await?;
                addrs.extend(other.lookup("n1.big.test.", 80).await?);
                io::Result::Ok(addrs)
            })
        });
        assert_eq!(addrs.await.unwrap().unwrap().unwrap().len(), 1 + server::BIG);
        // The TCP connection was a task of the other loop, which has ended.
        assert_eq!(resolver.lookup("n2.big.test.", 80).await.unwrap().len(), server::BIG);
        let asked = server.count(Transport::Udp, "one.test.");
        assert_eq!(resolver.lookup("one.test.", 80).await.unwrap(), [v4([10, 0, 0, 1], 80)]);
        assert_eq!(server.count(Transport::Udp, "one.test."), asked);
    });
}

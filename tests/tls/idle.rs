//! Many idle connections.

use windlass::net::TcpListener;
use windlass::tls::TlsStream;

use super::connector_and_acceptor;
use crate::child::{UNDISTURBED, in_own_process};
use crate::support::{Case, assert_idle, on_every_kernel_driver, open_descriptors, pair_of, variable};

/// Both ends are in this process; `.ci/soak` asks for more.
fn count() -> usize {
    variable("WINDLASS_TEST_TLS_IDLE").unwrap_or(200)
}

fn allow_all_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads and writes the local structure, and keeps no pointer to it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

#[test]
fn idle_connections_cost_no_turns_and_leak_nothing() {
    let test = "idle::idle_connections_cost_no_turns_and_leak_nothing";
    in_own_process(test, &UNDISTURBED, || {
        allow_all_descriptors();
        on_every_kernel_driver(sleep_and_wake);
    });
}

fn sleep_and_wake(case: Case) {
    let event_loop = case.event_loop();
    let before = open_descriptors();
    let result = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let (connector, acceptor) = connector_and_acceptor();
        let mut clients: Vec<TlsStream<_>> = Vec::new();
        let mut servers = Vec::new();
        for _ in 0..count() {
            let (client, server) = pair_of(&listener).await;
            let acceptor = acceptor.clone();
            servers.push(windlass::spawn(async move {
                let stream = acceptor.accept(server).await.expect("a handshake");
                let mut echoed = 0;
                loop {
                    let bytes = stream.read_managed().await.expect("read");
                    if bytes.is_empty() {
                        stream.shutdown().await.expect("shutdown");
                        return echoed;
                    }
                    echoed += bytes.len();
                    stream.write_all(bytes).await.0.expect("write");
                }
            }));
            clients.push(connector.connect("localhost", client).await.expect("a handshake"));
        }
        for _ in 0..2 {
            for client in &clients {
                client.write_all("ping").await.0.expect("write");
            }
            for client in &clients {
                let (result, echo) = client.read_exact(vec![0; 4]).await;
                result.expect("an echo");
                assert_eq!(echo, b"ping");
            }
            assert_idle().await;
        }
        for client in &clients {
            client.shutdown().await.expect("shutdown");
        }
        for (client, server) in clients.iter().zip(servers) {
            assert!(client.read_managed().await.expect("a clean end").is_empty());
            assert_eq!(server.await.expect("no panic"), 8);
        }
    });
    result.expect("the loop runs");
    let counters = event_loop.counters();
    assert_eq!((counters.in_flight, counters.ops, counters.tasks), (0, 0, 0));
    assert_eq!(open_descriptors(), before, "a connection is still open");
}

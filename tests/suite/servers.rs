//! Protocol servers, client connections with protocols, and what a closed loop leaves behind.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::protocol::{Server, create_connection, create_server};
use windlass::time::{sleep, timeout};

use crate::child;
use crate::protocol::Event::{Lost, Made};
use crate::protocol::{Log, Recorder, bytes, until, until_lost};
use crate::support::{Case, CountDrop, connect_error, exceptions_of, on_every_driver, open_descriptors, turns};

async fn silent_server(log: &Log) -> (Server, SocketAddr) {
    let log = log.clone();
    let server = create_server(move || Recorder::quiet(&log), "127.0.0.1:0")
        .await
        .unwrap();
    let addr = server.local_addr().unwrap();
    assert!(server.is_serving());
    assert_eq!(server.local_addrs(), [addr]);
    (server, addr)
}

#[test]
fn a_closed_server_lets_its_connections_end() {
    on_every_driver(|case| {
        case.run(async {
            let log = Log::default();
            let (server, addr) = silent_server(&log).await;
            let clients = [
                TcpStream::connect(addr).await.unwrap(),
                TcpStream::connect(addr).await.unwrap(),
            ];
            until(&log, |events| events.len() == 2).await;
            server.close();
            server.close();
            assert!(!server.is_serving());
            turns(5).await;
            sleep(Duration::from_millis(20)).await;
            let refused = connect_error(addr).await;
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            // Existing connections go on.
            clients[0].write_all("still").await.0.unwrap();
            until(&log, |_| bytes(&log) == b"still").await;
            assert_eq!(server.connections(), 2);
            let waiting = timeout(Duration::from_millis(50), server.wait_closed()).await;
            assert!(waiting.is_err(), "two are open");

            let before = log.borrow().len();
            server.close_clients();
            server.wait_closed().await;
            assert_eq!(server.connections(), 0);
            assert_eq!(log.borrow()[before..], [Lost(None), Lost(None)]);
            assert!(clients[0].read_managed().await.unwrap().is_empty());
        });
    });
}

#[test]
fn a_server_serves_until_closed() {
    on_every_driver(|case| {
        case.run(async {
            let log = Log::default();
            let (server, addr) = silent_server(&log).await;
            let server = Rc::new(server);
            let serving = windlass::spawn({
                let server = server.clone();
                async move { server.serve_forever().await }
            });
            let client = TcpStream::connect(addr).await.unwrap();
            until(&log, |events| events.len() == 1).await;
            server.abort_clients();
            assert_eq!(
                client.read_managed().await.unwrap_err().kind(),
                ErrorKind::ConnectionReset
            );
            assert!(!serving.is_finished());
            server.close();
            serving.await.unwrap().unwrap();
            server.wait_closed().await;

            // Dropping the future closes the server, and so does dropping the server.
            let (server, addr) = silent_server(&log).await;
            timeout(Duration::from_millis(10), server.serve_forever())
                .await
                .unwrap_err();
            server.wait_closed().await;
            connect_error(addr).await;
            let (server, addr) = silent_server(&log).await;
            drop(server);
            sleep(Duration::from_millis(20)).await;
            connect_error(addr).await;
        });
    });
}

/// A factory that panics, and one that closes its own server.
#[test]
fn a_factory_may_panic_or_close_its_server() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let log = Log::default();
            let the_server: Rc<RefCell<Option<Server>>> = Rc::default();
            let mut count = 0;
            let factory = {
                let (log, the_server) = (log.clone(), the_server.clone());
                move || {
                    count += 1;
                    match count {
                        1 => panic!("the factory is broken"),
                        2 => {}
                        _ => the_server.borrow().as_ref().unwrap().close(),
                    }
                    Recorder::quiet(&log)
                }
            };
            let server = create_server(factory, "127.0.0.1:0").await.unwrap();
            let addr = server.local_addr().unwrap();
            the_server.replace(Some(server));
            let client = TcpStream::connect(addr).await.unwrap();
            let ended = client.read_managed().await;
            assert!(ended.is_err() || ended.unwrap().is_empty());
            let second = TcpStream::connect(addr).await.unwrap();
            let third = TcpStream::connect(addr).await.unwrap();
            until(&log, |events| events.len() == 2).await;
            drop((second, third));
            let server = the_server.take().unwrap();
            server.wait_closed().await;
            assert_eq!(log.borrow().len(), 6, "{:?}", log.borrow());
        });
        run.unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
        assert!(exceptions.borrow()[0].contains("the factory is broken"));
    });
}

#[test]
fn a_failed_connection_creates_no_protocol() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            connect_error(addr).await;
            let error = create_connection(|| -> Recorder { unreachable!() }, addr)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&addr.to_string()), "{error}");

            let (server, addr) = silent_server(&Log::default()).await;
            let taken = create_server(|| -> Recorder { unreachable!() }, addr).await;
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse);
            drop(server);
        });
    });
}

/// `create_connection` returns after `connection_made`; a call dropped before that leaves nothing behind.
#[test]
fn create_connection_returns_after_connection_made() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let run = event_loop.run_until_complete(async {
            let served = Log::default();
            let (server, addr) = silent_server(&served).await;
            let log = Log::default();
            let (transport, protocol) = create_connection(|| Recorder::quiet(&log), addr).await.unwrap();
            assert_eq!(log.borrow()[..], [Made]);
            assert_eq!(transport.peer_addr().unwrap(), addr);
            assert!(protocol.try_with(|protocol| protocol.transport.is_some()).unwrap());
            transport.close();
            until_lost(&log).await;
            assert_eq!(transport.peer_addr().unwrap(), addr);

            for polls in 0..8 {
                let drops = Rc::new(Cell::new(0));
                let counted = CountDrop(drops.clone());
                let log = Log::default();
                let mut connecting = Box::pin(create_connection(
                    || Recorder::new(&log, move |_, _| _ = &counted),
                    addr,
                ));
                let mut done = false;
                for _ in 0..polls {
                    done = done || crate::support::poll_once(connecting.as_mut()).await.is_ready();
                    if done {
                        break;
                    }
                    turns(1).await;
                }
                drop(connecting);
                if !done {
                    until(&log, |events| {
                        events.is_empty() || matches!(events.last(), Some(Lost(_)))
                    })
                    .await;
                    turns(10).await;
                    assert_eq!(drops.get(), 1, "after {polls} polls");
                }
            }
            server.abort_clients();
            server.close();
            server.wait_closed().await;
        });
        run.unwrap();
    });
}

/// A closing loop drops protocols that hold their transports, transports that are held elsewhere, and servers.
#[test]
fn a_closed_loop_leaks_nothing() {
    let name = "servers::a_closed_loop_leaks_nothing";
    child::in_own_process(name, &[], || on_every_driver(close_with_all_open));
}

fn close_with_all_open(case: Case) {
    case.event_loop();
    let before = open_descriptors();
    let drops = Rc::new(Cell::new(0));
    let mut kept = Vec::new();
    let log = Log::default();
    let event_loop = case.event_loop();
    let run = event_loop.run_until_complete(async {
        let factory = {
            let (log, drops) = (log.clone(), drops.clone());
            move || {
                let counted = CountDrop(drops.clone());
                Recorder::new(&log, move |_, _| _ = &counted)
            }
        };
        let server = create_server(factory.clone(), "127.0.0.1:0").await.unwrap();
        let addr = server.local_addr().unwrap();
        for _ in 0..20 {
            let (transport, _) = create_connection(&factory, addr).await.unwrap();
            transport.write(vec![0; 8 << 20]);
            kept.push(transport);
        }
        until(&log, |events| {
            events.iter().filter(|event| **event == Made).count() == 40
        })
        .await;
        kept[0].set_protocol(factory());
        server
    });
    let server = run.unwrap();
    drop(event_loop);
    assert_eq!(drops.get(), 41);
    assert!(!server.is_serving());
    drop(server);
    let lost = log.borrow().iter().any(|event| matches!(event, Lost(_)));
    assert!(!lost, "a callback ran after the loop closed");
    for transport in &kept {
        assert!(transport.is_closing());
        transport.write("not sent");
        transport.close();
        transport.abort();
        assert_eq!(transport.get_write_buffer_size(), 0);
    }
    assert_eq!(open_descriptors(), before);
}

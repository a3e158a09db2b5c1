//! One endpoint per shard.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::shards;
use windlass_quinn::quinn::{ConnectionError, IdleTimeout, TransportConfig, VarInt};
use windlass_quinn::{ShardEndpoints, client, per_shard};

use crate::support::{HANG, Watchdog, configs};
use crate::{ask, echo};

const CLIENTS: usize = 64;

/// Serves until the pool stops.
async fn serve(shard: shards::Shard, endpoints: ShardEndpoints, served: Arc<[AtomicUsize; 2]>) -> io::Result<()> {
    let endpoint = endpoints.endpoint().await?;
    let (accepting, index) = (endpoint.clone(), shard.index());
    windlass::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            let served = served.clone();
            windlass::spawn(async move {
                if let Ok(connection) = incoming.await {
                    served[index].fetch_add(1, Ordering::Relaxed);
                    echo(connection).await;
                }
            })
            .detach();
        }
    })
    .detach();
    shard.stopping().await;
    endpoint.close(VarInt::from_u32(0), b"stop");
    endpoint.wait_idle().await;
    Ok(())
}

#[test]
fn all_shards_serve_one_address() {
    let _watchdog = Watchdog::start(HANG);
    let (server_config, client_config) = configs("test");
    let pool = shards::Builder::new().count(2).build().unwrap();
    let endpoints = match per_shard(&pool, "127.0.0.1:0", server_config) {
        Ok(endpoints) => endpoints,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let (addr, served) = (endpoints.local_addr(), Arc::<[AtomicUsize; 2]>::default());
    let stop = pool.shard(0);
    let clients = std::thread::spawn(move || {
        windlass::run(async move {
            let mut open = Vec::new();
            for number in 0..CLIENTS {
                // Each from a port of its own.
                let client = client("127.0.0.1:0", client_config.clone()).unwrap();
                let connection = client.connect(addr, "localhost").unwrap().await.unwrap();
                assert_eq!(ask(&connection, &[number as u8]).await, [number as u8]);
                open.push((client, connection));
            }
            for (_, connection) in &open {
                assert_eq!(ask(connection, b"again").await, b"again");
            }
            stop.stop();
            for (_, connection) in &open {
                assert!(matches!(
                    connection.closed().await,
                    ConnectionError::ApplicationClosed(_)
                ));
            }
        })
        .unwrap();
    });
    let counted = served.clone();
    pool.run(move |shard| serve(shard, endpoints.clone(), served.clone()))
        .unwrap();
    clients.join().unwrap();
    let [first, second] = [0, 1].map(|shard| counted[shard].load(Ordering::Relaxed));
    println!("shards served {first} and {second} connections");
    assert_eq!(first + second, CLIENTS);
    assert!(first > 0 && second > 0, "one shard served all");
}

#[test]
fn a_client_that_reaches_another_shard_is_reset() {
    let _watchdog = Watchdog::start(HANG);
    let (server_config, mut client_config) = configs("test");
    // So long that a missing reset is noticed.
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IdleTimeout::try_from(Duration::from_secs(3_000)).unwrap()));
    client_config.transport_config(Arc::new(transport));
    let pool = shards::Builder::new().count(2).build().unwrap();
    let endpoints = match per_shard(&pool, "127.0.0.1:0", server_config) {
        Ok(endpoints) => endpoints,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let (addr, stop, ends) = (
        endpoints.local_addr(),
        pool.shard(0),
        Arc::new(Mutex::new(HashSet::new())),
    );
    let seen = ends.clone();
    let clients = std::thread::spawn(move || {
        windlass::run(async move {
            // Half of the new ports reach the same shard. 60 tries on one side have a chance of 2^-60.
            for _ in 0..60 {
                let client = client("127.0.0.1:0", client_config.clone()).unwrap();
                let connection = client.connect(addr, "localhost").unwrap().await.unwrap();
                assert_eq!(ask(&connection, b"before").await, b"before");
                client
                    .rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
                    .unwrap();
                let asked = async {
                    let (mut send, mut recv) = connection.open_bi().await?;
                    let _ = send.write_all(b"after").await;
                    let _ = send.finish();
                    match recv.read_to_end(100).await {
                        Ok(answer) => assert_eq!(answer, b"after"),
                        Err(_) => return Err(connection.closed().await),
                    }
                    Ok(())
                };
                match asked.await {
                    Ok(()) => seen.lock().unwrap().insert("kept"),
                    Err(ConnectionError::Reset) => seen.lock().unwrap().insert("reset"),
                    Err(other) => panic!("{other}"),
                };
                if seen.lock().unwrap().len() == 2 {
                    break;
                }
            }
            stop.stop();
        })
        .unwrap();
    });
    let served = Arc::default();
    pool.run(move |shard| serve(shard, endpoints.clone(), Arc::clone(&served)))
        .unwrap();
    clients.join().unwrap();
    assert_eq!(ends.lock().unwrap().len(), 2, "{:?}", ends.lock().unwrap());
}

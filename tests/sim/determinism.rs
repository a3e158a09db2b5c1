//! A seed means the same run each time, and what breaks this is found and named.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream, UdpSocket};
use windlass::rand::{RandomState, Rng};
use windlass::sim::{self, Chaos, Sim};
use windlass::time::{sleep, timeout};

use crate::{TestResult, v4};

const NAMES: [&str; 3] = ["a", "b", "c"];

async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let echo = async move {
            while let Ok(bytes) = stream.read_managed().await {
                if bytes.is_empty() || stream.write_all(bytes).await.0.is_err() {
                    break;
                }
            }
        };
        windlass::spawn(echo).detach();
    }
}

async fn talk(text: String, peer: &str) -> io::Result<()> {
    let stream = TcpStream::connect((peer, 7000)).await?;
    stream.write_all(text).await.0?;
    stream.read_managed().await.map(drop)
}

/// Talks to the others over TCP and UDP, with maps, random numbers and blocking work.
async fn chatter(number: usize) -> io::Result<()> {
    windlass::spawn(serve()).detach();
    let socket = UdpSocket::bind("0.0.0.0:7001").await?;
    let mut rng = Rng::new();
    let mut seen: HashSet<u64, RandomState> = HashSet::default();
    loop {
        let peer = NAMES[(number + 1 + rng.below(2) as usize) % 3];
        let word = windlass::spawn_blocking(|| Rng::new().next_u64()).await;
        seen.insert(word.unwrap_or_default());
        let text: String = seen.iter().take(3).map(u64::to_string).collect();
        let _ = socket.send_to(text.clone(), v4(peer, 7001).await?).await.0;
        let _ = timeout(Duration::from_millis(rng.range(1..50)), socket.recv_managed()).await;
        let _ = timeout(Duration::from_millis(500), talk(text, peer)).await;
    }
}

/// Three hosts under all kinds of faults.
async fn busy(sim: Sim) -> TestResult {
    for (number, name) in NAMES.into_iter().enumerate() {
        sim.host(name).start(move || chatter(number));
    }
    sim.chaos(Chaos::swarm().keep_quorum(1).clock_skew(Duration::from_millis(200)));
    sleep(Duration::from_secs(sim.size("seconds", 1..=3))).await;
    sim.calm();
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// The same on every run, in debug and release, and with every set of features. A change of the model, of the log or of
/// what windlass does in a turn changes them: copy the printed ones.
#[cfg(target_os = "linux")]
const HASHES: [u64; 4] = [
    0xd04e_a646_2817_b1f8,
    0x1b3c_1412_d9d9_df57,
    0x5f24_b97f_dea2_9401,
    0x4d5d_fa2f_e36a_d865,
];

/// Error codes differ between systems.
#[cfg(target_os = "linux")]
#[test]
fn a_seed_means_the_same_run_in_every_build() {
    let hashes = [0, 1, 2, 3].map(|seed| sim::run(seed, busy).hash);
    assert_eq!(hashes, HASHES, "{hashes:#018x?}");
}

#[test]
fn equal_seeds_give_equal_runs_and_other_seeds_other_runs() {
    let hashes: Vec<u64> = (0..8).map(|seed| sim::run(seed, busy).hash).collect();
    let again: Vec<u64> = (0..8).map(|seed| sim::run(seed, busy).hash).collect();
    assert_eq!(hashes, again);
    assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 8);
}

/// Twenty maps, so that equal orders in two runs are out of the question.
async fn iterates<S: BuildHasher + Default + 'static>(sim: Sim) -> TestResult {
    sim.host("a").start(|| async {
        let iterating = windlass::task::Builder::new().name("iterating").spawn(async {
            let socket = UdpSocket::bind("0.0.0.0:7000").await?;
            for _ in 0..20 {
                let peers: HashMap<u16, (), S> = (1..50).map(|port| (port, ())).collect();
                for port in peers.keys() {
                    socket
                        .send_to(vec![0; usize::from(*port)], v4("a", *port).await?)
                        .await
                        .0?;
                }
            }
            io::Result::Ok(())
        });
        iterating.await.expect("neither cancelled nor panicked")
    });
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

#[test]
fn the_order_of_a_std_map_is_found_and_named() {
    let failed = sim::try_sweep(0..2, iterates::<std::hash::RandomState>).unwrap_err();
    let report = failed.to_string();
    for part in [
        "seed 0x0 is not deterministic",
        "host:    a\n",
        "'iterating'",
        "tests/sim/determinism.rs",
        "suspect: the iteration order of a `HashMap`",
        "windlass::rand::RandomState",
        "replay:  WINDLASS_SIM_SEED=0x0 cargo test",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn the_order_of_a_seeded_map_is_the_same() {
    sim::sweep(0..5, iterates::<RandomState>);
}

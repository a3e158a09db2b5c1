//! Hosts with disks: crashes, faults, latencies, and the test's access to them.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use windlass::fs::{self, File, OpenOptions};
use windlass::os_code;
use windlass::sim::{self, Chaos, Crash, Disk, DiskFaults, DiskLatency, FaultKind, Sim};
use windlass::time::{Instant, sleep, wall_now};

use crate::{MS, SEC, seeds};

/// Starts a host whose program does this and then waits, and returns when it waits.
async fn on_host<F: Future<Output = io::Result<()>> + 'static>(
    sim: &Sim,
    name: &str,
    disk: Disk,
    program: impl Fn() -> F + 'static,
) {
    sim.host(name).disk(disk).start(move || {
        let work = program();
        async move {
            work.await?;
            fs::write("/tmp/waits", "").await?;
            std::future::pending::<io::Result<()>>().await
        }
    });
    while !sim.disk(name).exists("/tmp/waits") {
        sleep(MS).await;
    }
}

async fn sync_dir(path: &str) -> io::Result<()> {
    File::open(path).await?.sync_all().await
}

#[test]
fn a_power_loss_keeps_what_was_synced() {
    static EXISTS: Mutex<BTreeSet<bool>> = Mutex::new(BTreeSet::new());
    sim::sweep(0..100, |sim: Sim| async move {
        on_host(&sim, "a", Disk::posix(), || async {
            fs::create_dir("/data").await?;
            let file = File::create("/data/synced").await?;
            file.write_all("synced").await.0?;
            file.sync_all().await?;
            sync_dir("/data").await?;
            sync_dir("/").await?;
            fs::write("/data/unsynced", "unsynced").await
        })
        .await;
        sim.crash("a", Crash::Power);
        let disk = sim.disk("a");
        assert_eq!(disk.read("/data/synced")?, b"synced");
        EXISTS.lock().unwrap().insert(disk.exists("/data/unsynced"));
        Ok(())
    });
    assert_eq!(
        EXISTS.lock().unwrap().len(),
        2,
        "some seeds lose the file, others keep it"
    );
}

#[test]
fn a_process_crash_keeps_everything() {
    seeds(|sim| async move {
        on_host(&sim, "a", Disk::posix(), || async {
            match fs::read("/first").await {
                Err(_) => fs::write("/first", "1").await,
                Ok(_) => fs::write("/second", "2").await,
            }
        })
        .await;
        sim.crash("a", Crash::Process);
        sim.restart("a");
        while !sim.disk("a").exists("/second") {
            sleep(MS).await;
        }
        assert_eq!(sim.disk("a").list("/")?.len(), 3);
        Ok(())
    });
}

/// Each host has files of its own, which are not the machine's.
#[test]
fn hosts_do_not_share_files() {
    seeds(|sim| async move {
        for name in ["a", "b"] {
            on_host(&sim, name, Disk::ext4(), move || async move {
                assert!(!fs::try_exists("/etc/passwd").await?);
                fs::write("/name", name).await?;
                let file = OpenOptions::new().read(true).append(true).open("/name").await?;
                file.write_all("!").await.0
            })
            .await;
        }
        assert_eq!(sim.disk("a").read("/name")?, b"a!");
        assert_eq!(sim.disk("b").read("/name")?, b"b!");
        Ok(())
    });
}

#[test]
fn operations_take_virtual_time() {
    seeds(|sim| async move {
        let latency = DiskLatency::none()
            .sync(SEC, Duration::ZERO)
            .read(10 * MS, Duration::ZERO);
        on_host(&sim, "a", Disk::posix().latency(latency), || async {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .open("/f")
                .await?;
            let begin = Instant::now();
            file.write_all_at("data", 0).await.0?;
            assert!(begin.elapsed() < MS, "{:?}", begin.elapsed());
            file.sync_data().await?;
            assert!(
                begin.elapsed() >= SEC && begin.elapsed() < SEC + MS,
                "{:?}",
                begin.elapsed()
            );
            let before = Instant::now();
            file.read_at(vec![0; 4], 0).await.0?;
            assert!(before.elapsed() >= 10 * MS && before.elapsed() < 11 * MS);
            // The file's time is the host's.
            let age = wall_now()
                .duration_since(file.metadata().await?.modified()?)
                .expect("it is older");
            assert!(age >= SEC && age < 2 * SEC, "{age:?}");
            Ok(())
        })
        .await;
        sim.disk("a").stall(5 * SEC);
        Ok(())
    });
}

/// A read that is cancelled while the disk stalls.
#[test]
fn a_stalled_operation_can_be_cancelled() {
    seeds(|sim| async move {
        let disk = Disk::posix().latency(DiskLatency::none().read(60 * SEC, Duration::ZERO));
        on_host(&sim, "a", disk, || async {
            fs::write("/f", "data").await?;
            let file = File::open("/f").await?;
            let begin = Instant::now();
            let read = windlass::time::timeout(SEC, file.read_at(vec![0; 4], 0)).await;
            assert!(read.is_err() && begin.elapsed() < 2 * SEC);
            Ok(())
        })
        .await;
        Ok(())
    });
}

#[test]
fn faults_reach_the_program() {
    seeds(|sim| async move {
        let disk = Disk::posix()
            .capacity(1 << 20)
            .faults(DiskFaults::none().sync_errors(1.0).short_writes(0.5));
        on_host(&sim, "a", disk, || async {
            let file = File::create("/f").await?;
            let error = file.write_all(vec![1; 2 << 20]).await.0.expect_err("the disk is full");
            assert_eq!(os_code(&error), Some(libc::ENOSPC));
            let error = file.sync_all().await.expect_err("a fault");
            assert_eq!(os_code(&error), Some(libc::EIO));
            file.set_len(5).await
        })
        .await;
        let disk = sim.disk("a");
        assert_eq!(disk.faults(), DiskFaults::none().sync_errors(1.0).short_writes(0.5));
        assert_eq!(disk.read("/f")?, [1; 5]);
        disk.wipe();
        assert!(!disk.exists("/f"));
        Ok(())
    });
}

/// A program that replaces a file is started again on every image that a power loss can leave.
#[test]
fn a_program_recovers_from_every_image() {
    seeds(|sim| async move {
        on_host(&sim, "a", Disk::posix(), || async {
            if let Ok(settings) = fs::read("/settings").await {
                assert!(settings == b"version 1" || settings == b"version 2", "{settings:?}");
                return fs::write("/recovered", settings).await;
            }
            for version in ["version 1", "version 2"] {
                let file = File::create("/new").await?;
                file.write_all(version).await.0?;
                file.sync_all().await?;
                fs::rename("/new", "/settings").await?;
                if version == "version 1" {
                    sync_dir("/").await?;
                }
            }
            Ok(())
        })
        .await;
        let disk = sim.disk("a");
        let mut recovered = BTreeSet::new();
        for image in disk.crash_images(1_000)? {
            sim.crash("a", Crash::Power);
            disk.load(&image);
            sim.restart("a");
            while disk.read("/recovered").unwrap_or_default().is_empty() {
                sleep(MS).await;
            }
            recovered.insert(disk.read("/recovered")?);
        }
        assert_eq!(recovered.len(), 2);
        Ok(())
    });
}

/// The same seed loses the same sectors.
#[test]
fn losses_depend_on_the_seed_alone() {
    let left = |seed| {
        let result = std::sync::Arc::new(Mutex::new(String::new()));
        let out = result.clone();
        sim::run(seed, move |sim: Sim| {
            let out = out.clone();
            async move {
                on_host(&sim, "a", Disk::posix().sector(512), || async {
                    let file = File::create("/f").await?;
                    sync_dir("/").await?;
                    file.write_all_at(vec![1; 20 * 512], 0).await.0
                })
                .await;
                sim.crash("a", Crash::Power);
                let bytes = sim.disk("a").read("/f")?;
                *out.lock().unwrap() = bytes.iter().map(|byte| byte.to_string()).collect();
                Ok(())
            }
        });
        result.lock().unwrap().clone()
    };
    let all: Vec<String> = (0..10).map(left).collect();
    assert_eq!(all, (0..10).map(left).collect::<Vec<_>>());
    assert!(all.iter().collect::<BTreeSet<_>>().len() > 2);
}

/// A plan of faults reaches the disks, and `calm` ends it.
#[test]
fn plans_make_disks_fail() {
    static MET: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    sim::sweep(0..40, |sim: Sim| async move {
        sim.host("a").start(|| async {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .open("/f")
                .await?;
            loop {
                let begin = Instant::now();
                let met = match (file.write_at("data", 0).await.0, file.sync_data().await) {
                    (Err(error), _) if os_code(&error) == Some(libc::ENOSPC) => "no space",
                    (Err(_), _) => "write",
                    (_, Err(_)) => "sync",
                    _ if file.read_at(vec![0; 4], 0).await.0.is_err() => "read",
                    _ if begin.elapsed() > 100 * MS => "stall",
                    _ => "fine",
                };
                MET.lock().unwrap().insert(met);
                sleep(50 * MS).await;
            }
            #[allow(unreachable_code)]
            Ok::<(), io::Error>(())
        });
        sim.chaos(Chaos::only([FaultKind::DiskStall, FaultKind::DiskError]));
        sleep(60 * SEC).await;
        sim.calm();
        Ok(())
    });
    let met: Vec<&str> = MET.lock().unwrap().iter().copied().collect();
    assert_eq!(met, ["fine", "no space", "read", "stall", "sync", "write"]);
}

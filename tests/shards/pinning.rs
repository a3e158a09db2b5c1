//! `Pin`: shards run on their cpus, and what they start does not.

use std::fs;

use windlass::process::Command;
use windlass::shards::{self, Pin, Shard};
use windlass::spawn_blocking;

use crate::support::on_every_kernel_driver;

/// The cpus of a thread, such as `0-3,8`, by its `status` file.
fn cpus_in(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("the mask in the status of a thread").trim().to_owned()
}

fn own_cpus() -> String {
    cpus_in(&fs::read_to_string("/proc/thread-self/status").expect("/proc"))
}

#[test]
fn threads_and_processes_of_a_pinned_shard_are_not_pinned() {
    on_every_kernel_driver(|case| {
        let before = own_cpus();
        let pool = shards::Builder::new()
            .count(2)
            .pin(Pin::OneCpuEach)
            .each_loop(move |_, builder| builder.driver(case.choice))
            .build()
            .unwrap();
        let outputs = pool.run(|shard: Shard| async move {
            let blocking = spawn_blocking(own_cpus).await.expect("no panic");
            let child = Command::new("cat").arg("/proc/self/status").output().await?;
            let child = cpus_in(&String::from_utf8_lossy(&child.stdout));
            std::io::Result::Ok((shard.index(), own_cpus(), blocking, child))
        });
        for (index, shard, blocking, child) in outputs.unwrap() {
            assert!(shard.parse::<usize>().is_ok(), "shard {index} runs on '{shard}'");
            assert_eq!((&blocking, &child), (&before, &before), "shard {index}");
        }
        // The caller's thread, which was shard 0, has its cpus back.
        assert_eq!(own_cpus(), before);
    });
}

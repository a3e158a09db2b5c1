//! `Builder::worker_cpus`: what a loop on a pinned thread starts does not inherit the mask of that thread.

use std::collections::HashSet;
use std::fs;

use windlass::LoopThread;
use windlass::blocking::Pool;
use windlass::fs::File;
use windlass::process::Command;
use windlass::spawn_blocking;

use crate::support::{Folder, on_every_exact_driver, on_every_kernel_driver};

/// The line of a `status` file that lists the cpus of a thread, such as `0-3,8`.
fn allowed_in(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("the mask in the status of a thread").trim().to_owned()
}

/// The mask of the calling thread.
fn own_mask() -> String {
    allowed_in(&fs::read_to_string("/proc/thread-self/status").expect("/proc"))
}

/// The cpus of the calling thread; `None`, and a message, if there is only one: then no two masks differ.
fn several_cpus() -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in own_mask().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().expect("a cpu")..=last.parse().expect("a cpu"));
    }
    if cpus.len() > 1 {
        return Some(cpus);
    }
    println!("-- SKIPPED: this process may use only one cpu");
    None
}

/// Binds the calling thread, which ends with its test.
fn pin_to(cpu: usize) {
    assert!(cpu < libc::CPU_SETSIZE as usize, "this test does not support cpu {cpu}");
    // SAFETY: the set is an array of numbers, for which zeros are valid, and the number is within it. The kernel reads
    // the set during the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(own_mask(), cpu.to_string());
}

#[test]
fn pool_threads_run_on_the_worker_cpus() {
    on_every_exact_driver(|case| {
        let Some(cpus) = several_cpus() else { return };
        let full = own_mask();
        pin_to(cpus[0]);
        let masks = |builder: windlass::Builder| {
            let event_loop = builder.build().expect("a loop");
            let masks = event_loop.run_until_complete(async {
                let shared = Pool::new();
                let other = LoopThread::start().expect("a thread");
                [
                    spawn_blocking(own_mask).await.expect("no panic"),
                    shared.spawn(own_mask).await.expect("no panic"),
                    other
                        .handle()
                        .spawn_with(async || own_mask())
                        .expect("open")
                        .await
                        .expect("no panic"),
                ]
            });
            masks.expect("the loop runs")
        };
        // Without the setting, a thread inherits the mask of the thread that starts it.
        let pinned = cpus[0].to_string();
        assert_eq!(masks(case.builder()), [&*pinned; 3]);
        assert_eq!(masks(case.builder().worker_cpus(cpus.clone())), [&*full; 3]);
        // The loop's own thread stays where it is.
        assert_eq!(own_mask(), pinned);
        let last = *cpus.last().expect("several");
        assert_eq!(masks(case.builder().worker_cpus([last])), [&*last.to_string(); 3]);
    });
}

#[test]
fn a_child_process_runs_on_the_worker_cpus() {
    on_every_kernel_driver(|case| {
        let Some(cpus) = several_cpus() else { return };
        let full = own_mask();
        pin_to(cpus[0]);
        let mask_of_child = |builder: windlass::Builder| {
            let event_loop = builder.build().expect("a loop");
            let child = async { Command::new("cat").arg("/proc/self/status").output().await };
            let output = event_loop.run_until_complete(child).expect("the loop runs");
            allowed_in(&String::from_utf8_lossy(&output.expect("cat").stdout))
        };
        let pinned = cpus[0].to_string();
        assert_eq!(mask_of_child(case.builder()), pinned);
        assert_eq!(mask_of_child(case.builder().worker_cpus(cpus.clone())), full);
        assert_eq!(own_mask(), pinned, "after the start of a child");
    });
}

/// The threads of this process that belong to the io_uring of the calling thread, with their masks.
fn io_workers() -> HashSet<(String, String)> {
    // SAFETY: the call takes no argument and accesses no memory.
    let name = format!("iou-wrk-{}", unsafe { libc::gettid() });
    let threads = fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let mask_of = |thread: fs::DirEntry| {
        let of_ring = fs::read_to_string(thread.path().join("comm")).ok()?.trim() == name;
        let status = of_ring.then(|| fs::read_to_string(thread.path().join("status")).ok())??;
        Some((thread.file_name().into_string().ok()?, allowed_in(&status)))
    };
    threads.filter_map(mask_of).collect()
}

#[test]
fn io_uring_workers_run_on_the_worker_cpus() {
    on_every_kernel_driver(|case| {
        if !case.has_rings() {
            return;
        }
        let Some(cpus) = several_cpus() else { return };
        pin_to(cpus[0]);
        // Neither the mask of this thread nor all cpus: only the setting explains it.
        let last = *cpus.last().expect("several");
        let folder = Folder::new();
        let path = folder.join("file");
        let event_loop = case.builder().worker_cpus([last]).build().expect("a loop");
        let workers = event_loop.run_until_complete(async {
            // The kernel always gives an fsync to a worker, which stays for some seconds.
            let file = File::create(&path).await.expect("create");
            file.sync_all().await.expect("fsync");
            io_workers()
        });
        let workers = workers.expect("the loop runs");
        if workers.is_empty() {
            println!("-- SKIPPED: this kernel has done an fsync without a worker");
        }
        for (id, mask) in workers {
            assert_eq!(mask, last.to_string(), "worker {id}");
        }
    });
}

#[test]
fn no_worker_cpu_is_an_error_and_an_unknown_one_is_reported() {
    on_every_exact_driver(|case| {
        let refused = case.builder().worker_cpus([]).build().expect_err("an empty set");
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
        // Blocking work is done all the same.
        let own = own_mask();
        let event_loop = case.builder().worker_cpus([60_000]).build().expect("a loop");
        let mask = event_loop.run_until_complete(async { spawn_blocking(own_mask).await.expect("no panic") });
        assert_eq!(mask.expect("the loop runs"), own);
    });
}

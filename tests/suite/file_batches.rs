//! Which reads of files are system calls of their own, and which are queued in the ring: counted, on io_uring.

use std::future::Future;
use std::rc::Rc;

use windlass::driver::DriverCounters;
use windlass::fs::File;
use windlass::io::AlignedBuf;
use windlass::task::yield_now;

use crate::support::{Case, Folder, on_every_kernel_driver};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// The number of operations that were submitted, and of system calls for them, by `work` with an open file.
fn count<F: Future<Output = ()>>(case: Case, direct: bool, work: impl FnOnce(Rc<File>) -> F) -> Option<DriverCounters> {
    let folder = Folder::new();
    let path = folder.file("blocks", contents());
    case.run(async {
        let file = match File::options().read(true).direct(direct).open(&path).await {
            Err(error) if direct => {
                println!("-- SKIPPED: no O_DIRECT here: {error}");
                return None;
            }
            file => Rc::new(file.expect("open")),
        };
        let before = windlass::counters().driver;
        work(file).await;
        let mut after = windlass::counters().driver;
        after.submissions -= before.submissions;
        after.enters -= before.enters;
        Some(after)
    })
}

/// Block `n` consists of bytes `n`.
fn contents() -> Vec<u8> {
    (0..BLOCKS).flat_map(|number| [number as u8; BLOCK]).collect()
}

async fn read(file: &File, number: u64) {
    let (result, bytes) = file
        .read_exact_at(AlignedBuf::zeroed(BLOCK, BLOCK), number % BLOCKS * BLOCK as u64)
        .await;
    result.expect("read");
    assert!(bytes.iter().all(|&byte| u64::from(byte) == number % BLOCKS));
}

/// Runs `readers` tasks with `reads` reads each, and `others` that are ready in every turn until these are done.
async fn read_in_tasks(file: Rc<File>, readers: u64, reads: u64, others: usize) {
    let reader = |first: u64| {
        let file = file.clone();
        windlass::spawn(async move {
            for number in 0..reads {
                read(&file, first + number).await;
            }
        })
    };
    let busy: Vec<_> = (0..others)
        .map(|_| {
            windlass::spawn(async {
                loop {
                    yield_now().await;
                }
            })
        })
        .collect();
    let tasks: Vec<_> = (0..readers).map(reader).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    busy.iter().for_each(|task| task.cancel());
}

#[test]
fn few_readers_make_a_system_call_of_their_own_for_each_read() {
    on_every_kernel_driver(|case| {
        for readers in [1, 4] {
            let counted = count(case, false, |file| read_in_tasks(file, readers, 300, 0)).expect("counted");
            // The driver may start its own read of the eventfd.
            assert!(counted.submissions <= 1, "{counted:?} for cached reads");
        }
    });
}

#[test]
fn reads_of_many_tasks_share_a_system_call() {
    on_every_kernel_driver(|case| {
        let counted = count(case, false, |file| read_in_tasks(file, 32, 100, 0)).expect("counted");
        match case.tries_first() {
            true => assert_eq!(counted.submissions, 0),
            // The last reads of a task may find few others.
            false => {
                assert!(counted.submissions >= 3_000, "{counted:?} for 3,200 cached reads");
                // A smaller ring is submitted whenever it is full.
                let is_whole = counted.sq_full == 0;
                assert!(
                    !is_whole || counted.enters <= 3_200 / 16,
                    "{counted:?} for 3,200 cached reads"
                );
            }
        }
    });
}

#[test]
fn a_lone_reader_among_other_ready_tasks_goes_back_to_immediate_reads() {
    on_every_kernel_driver(|case| {
        let counted = count(case, false, |file| read_in_tasks(file, 1, 5_000, 32)).expect("counted");
        assert!(
            counted.submissions <= 10,
            "{counted:?} for 5,000 cached reads of one task"
        );
    });
}

/// The disk works on the first reads while later tasks start theirs: a task that runs after the readers in the same turn sees the
/// system calls that submitted them.
#[test]
fn direct_reads_of_many_tasks_reach_the_disk_before_the_turn_ends() {
    on_every_kernel_driver(|case| {
        if case.tries_first() {
            return;
        }
        let _ = count(case, true, async |file| {
            let enters = || windlass::spawn(async { windlass::counters().driver.enters });
            let before = enters();
            let readers: Vec<_> = (0..32)
                .map(|number| {
                    let file = file.clone();
                    windlass::spawn(async move { read(&file, number).await })
                })
                .collect();
            let after = enters();
            let submitted = after.await.expect("no panic") - before.await.expect("no panic");
            assert!(
                submitted >= 8,
                "{submitted} system calls for 32 direct reads, four at a time"
            );
            for reader in readers {
                reader.await.expect("no panic");
            }
        });
    });
}

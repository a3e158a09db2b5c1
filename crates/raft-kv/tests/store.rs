//! openraft's tests of a log and state machine, on the files of every driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use raft_kv::TypeConfig;
use raft_kv::log::LogStore;
use raft_kv::state::StateMachine;
use windlass::{Builder, DriverChoice};

/// Makes a store in a directory of its own, each time.
struct Stores {
    dir: PathBuf,
    count: AtomicU64,
}

impl StoreBuilder<TypeConfig, LogStore, StateMachine, ()> for Stores {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = self.dir.join(self.count.fetch_add(1, Ordering::Relaxed).to_string());
        // Every purge rewrites the file.
        let (log, writer) = LogStore::open(&dir, 0, None).await.expect("the log can be opened");
        windlass::spawn(writer.run());
        let state = StateMachine::open(&dir).await.expect("there is no snapshot");
        Ok(((), log, state))
    }
}

fn passes(choice: DriverChoice) {
    let event_loop = match Builder::new().driver(choice).build() {
        Ok(event_loop) => event_loop,
        Err(error) => return println!("skipped: {choice:?} is not available: {error}"),
    };
    let dir = std::env::temp_dir().join(format!("raft-kv-store-{}-{choice:?}", std::process::id()));
    let stores = Stores {
        dir: dir.clone(),
        count: AtomicU64::new(0),
    };
    let result = event_loop.run_until_complete(Suite::test_all(stores));
    drop(std::fs::remove_dir_all(dir));
    result.expect("the loop runs").expect("the suite passes");
}

#[test]
fn proactor() {
    passes(DriverChoice::Proactor);
}

#[test]
fn reactor() {
    passes(DriverChoice::Reactor);
}

#[test]
#[cfg(unix)]
fn null() {
    passes(DriverChoice::Null);
}

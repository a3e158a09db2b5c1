//! windlass on each driver: `Builder::new().driver(..)` with defaults; `windlass::spawn`, `time::sleep`,
//! `task::yield_now`. Measured separately: precise timers, no busy-polling, eager tasks.
//!
//! Echo: the README's server (in the kit), `read_managed` and `write_all`. Files: `fs::File::read_exact_at`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use windlass::fs::File;
use windlass::{Builder, DriverChoice};

use crate::kit::server::windlass_echo;
use crate::runtime::Runtime;

pub(crate) struct Windlass<const IS_PROACTOR: bool, const SETTING: u8>;

pub(crate) type Proactor<const SETTING: u8> = Windlass<true, SETTING>;
pub(crate) type Reactor<const SETTING: u8> = Windlass<false, SETTING>;

/// Defaults; precise timers; no busy-polling; tasks started with `spawn_eager`.
pub(crate) const DEFAULTS: u8 = 0;
pub(crate) const PRECISE: u8 = 1;
pub(crate) const NO_BUSY_POLL: u8 = 2;
pub(crate) const EAGER: u8 = 3;

impl<const IS_PROACTOR: bool, const SETTING: u8> Runtime for Windlass<IS_PROACTOR, SETTING> {
    const SETTINGS: &'static str = match SETTING {
        PRECISE => "precise_timers(true); timers only",
        NO_BUSY_POLL => "busy_poll(0); paced echo only: read_managed",
        EAGER => "defaults; tasks only: spawn_eager",
        _ => "defaults; echo: read_managed; files: read_exact_at",
    };

    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let driver = match IS_PROACTOR {
            true => DriverChoice::Proactor,
            false => DriverChoice::Reactor,
        };
        let builder = Builder::new().driver(driver);
        let builder = match SETTING {
            PRECISE => builder.precise_timers(true),
            NO_BUSY_POLL => builder.busy_poll(Duration::ZERO),
            _ => builder,
        };
        builder.build()?.run_until_complete(main)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        let handle = match SETTING {
            EAGER => windlass::task::spawn_eager(task),
            _ => windlass::spawn(task),
        };
        async { handle.await.expect("no task of these panics") }
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static {
        windlass::time::sleep(length)
    }

    fn yield_now() -> impl Future<Output = ()> {
        windlass::task::yield_now()
    }

    async fn serve() -> io::Result<()> {
        windlass_echo().await
    }

    type File = File;

    async fn open(path: &Path) -> io::Result<File> {
        File::open(path).await
    }

    async fn read_at(file: &Rc<File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let (result, buffer) = file.read_exact_at(buffer, offset).await;
        result.map(|()| buffer)
    }
}

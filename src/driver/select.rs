//! Chooses and opens a driver, and describes the choice.

use std::fmt;
use std::io::{self, Write};
use std::sync::Once;

use super::{Driver, Settings};
use crate::sim::SimDriver;
use crate::sys::{errno, os_code};
use crate::{proactor, reactor};

/// The driver that a [`Builder`](crate::Builder) opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// The proactor, or the reactor if the kernel lacks the proactor or denies it to this process. The first fallback
    /// of a process is reported on stderr.
    #[default]
    Auto,
    /// Completion-based: io_uring on Linux, completion ports on Windows.
    Proactor,
    /// Readiness-based: epoll on Linux, kqueue on macOS and the BSDs, AFD on Windows.
    Reactor,
    /// No kernel at all: in-memory sockets and files and a virtual clock. For tests. See also
    /// [`Builder::null_files`](crate::Builder::null_files).
    ///
    /// The clock stands still while a task can run, and jumps to the next deadline when none can. It also stands still
    /// while a thread works for the loop, on a real file, a name lookup or a blocking job whose handle was not dropped: see
    /// [`Driver::has_virtual_clock`].
    Null,
}

/// The files of a loop on [`DriverChoice::Null`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NullFiles {
    /// Files in memory, which the loop has for itself and which go with it. At first there are `/tmp`, the temporary and
    /// the current directory, all empty. Results and error codes are Linux's. On Windows the files are the real ones.
    #[default]
    Memory,
    /// The real files of the machine; threads of the pool work on them.
    Real,
}

impl std::str::FromStr for DriverChoice {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<DriverChoice> {
        match name {
            "auto" => Ok(DriverChoice::Auto),
            "proactor" => Ok(DriverChoice::Proactor),
            "reactor" => Ok(DriverChoice::Reactor),
            "null" => Ok(DriverChoice::Null),
            other => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no driver is called '{other}': choose auto, proactor, reactor or null"),
            )),
        }
    }
}

/// Which driver a loop runs on, which kernel features it uses, and why it was chosen.
///
/// ```
/// let event_loop = windlass::EventLoop::new()?;
/// println!("{}", event_loop.describe());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The driver's name. The built-in ones are `io_uring`, `iocp`, `epoll`, `kqueue`, `afd` and `null`.
    pub name: &'static str,
    /// The kernel features that it uses, or that it lacks (`no ...`).
    pub features: Vec<&'static str>,
    /// Why this driver and not another.
    pub reason: String,
}

impl Description {
    /// Describes a driver.
    pub fn new(name: &'static str, features: Vec<&'static str>, reason: impl Into<String>) -> Description {
        Description {
            name,
            features,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.features.is_empty() {
            write!(f, " [{}]", self.features.join(", "))?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Opens the driver that the program chose, else the one that `WINDLASS_DRIVER` names, else the best available one.
pub(crate) fn choose(choice: Option<DriverChoice>, settings: &Settings) -> io::Result<Box<dyn Driver>> {
    let (choice, reason) = match choice {
        Some(choice) => (choice, "the program asked for it"),
        None => match std::env::var_os("WINDLASS_DRIVER") {
            // A name that is not Unicode is unknown, too.
            Some(name) => (name.to_string_lossy().parse()?, "WINDLASS_DRIVER asks for it"),
            None => (DriverChoice::Auto, ""),
        },
    };
    match choice {
        DriverChoice::Auto => choose_best(settings),
        DriverChoice::Proactor => proactor::open(settings, reason),
        DriverChoice::Reactor => reactor::open(reason),
        DriverChoice::Null => Ok(Box::new(SimDriver::standalone(reason, settings.null_files))),
    }
}

/// The proactor where the kernel offers it, else the reactor. Running out of memory or descriptors is an error: another
/// driver would not help and would hide the shortage.
fn choose_best(settings: &Settings) -> io::Result<Box<dyn Driver>> {
    let refusal = match proactor::open(settings, "the best driver of this machine") {
        Err(error) if cfg!(feature = "reactor") && is_unavailable(&error) => error,
        result => return result,
    };
    let driver = reactor::open(&format!("the proactor is not available: {refusal}"))?;
    // A build without a proactor cannot fall back from one.
    if proactor::IS_BUILT {
        static REPORTED: Once = Once::new();
        // Not `eprintln`, which panics when stderr is closed.
        REPORTED.call_once(|| drop(writeln!(io::stderr(), "windlass: running on {}", driver.describe())));
    }
    Ok(driver)
}

/// Whether the kernel lacks the driver's interface or denies it to this process.
fn is_unavailable(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            os_code(error),
            Some(errno::NO_SYSTEM_CALL | errno::NOT_PERMITTED | errno::NO_ACCESS | errno::INVALID)
        )
}

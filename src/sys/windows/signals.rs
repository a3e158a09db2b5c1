//! What comes from the console, as signals under the C library's numbers: Ctrl-C, Ctrl-Break, the window closing.
//!
//! The system calls the handler on a thread of its own, so it may lock.

use std::io;
use std::net::UdpSocket;
use std::os::windows::io::AsRawSocket;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler,
};

use super::{Fd, number_of_socket};

pub(crate) const INTERRUPT: i32 = 2;
pub(crate) const BREAK: i32 = 21;
/// The window is closed.
pub(crate) const HANGUP: i32 = 1;
/// The user logs off, or the machine shuts down. Only services hear of these.
pub(crate) const TERMINATE: i32 = 15;

/// The requests to end the program.
pub(crate) const SHUTDOWN: &[i32] = &[INTERRUPT, BREAK, HANGUP, TERMINATE];

const KNOWN: [i32; 4] = [INTERRUPT, BREAK, HANGUP, TERMINATE];

/// Whether there is no such signal here.
pub(crate) fn is_forbidden(number: i32) -> bool {
    !KNOWN.contains(&number)
}

/// What is registered, under this number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Action(u64);

struct Registered {
    id: u64,
    number: i32,
    action: Box<dyn Fn() + Send + Sync>,
}

struct Registry {
    handles: bool,
    last_id: u64,
    registered: Vec<Registered>,
    /// What somebody has ever listened to. What the system does by default is off for these, for good, as it is elsewhere: a
    /// listener that comes and goes must not make Ctrl-C end the program now and then.
    taken_over: Vec<i32>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    handles: false,
    last_id: 0,
    registered: Vec::new(),
    taken_over: Vec::new(),
});

fn registry() -> MutexGuard<'static, Registry> {
    // Nothing in here panics half-way.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `action` called whenever the signal comes.
///
/// # Safety
///
/// None here; elsewhere the action runs in a signal handler.
pub(crate) unsafe fn register(number: i32, action: impl Fn() + Send + Sync + 'static) -> io::Result<Action> {
    let mut registry = registry();
    if !registry.handles {
        // SAFETY: the handler is a function, which stays.
        if unsafe { SetConsoleCtrlHandler(Some(handle), 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        registry.handles = true;
    }
    if !registry.taken_over.contains(&number) {
        registry.taken_over.push(number);
    }
    registry.last_id += 1;
    let id = registry.last_id;
    registry.registered.push(Registered {
        id,
        number,
        action: Box::new(action),
    });
    Ok(Action(id))
}

/// Takes that back. False if it was not there.
pub(crate) fn unregister(action: Action) -> bool {
    let gone = {
        let mut registry = registry();
        let at = registry.registered.iter().position(|one| one.id == action.0);
        at.map(|at| registry.registered.swap_remove(at))
    };
    gone.is_some()
}

/// Tells who listens, and says whether what the system does by default is off. Runs on a thread of the system's.
unsafe extern "system" fn handle(event: u32) -> i32 {
    let (number, is_last) = match event {
        CTRL_C_EVENT => (INTERRUPT, false),
        CTRL_BREAK_EVENT => (BREAK, false),
        CTRL_CLOSE_EVENT => (HANGUP, true),
        CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT => (TERMINATE, true),
        _ => return 0,
    };
    let (mut heard, taken_over);
    {
        let registry = registry();
        let listeners = registry.registered.iter().filter(|one| one.number == number);
        heard = false;
        for one in listeners {
            // A room's: it sets a flag and rings a bell, and does not wait.
            (one.action)();
            heard = true;
        }
        taken_over = registry.taken_over.contains(&number);
    }
    // The system ends the process as soon as this returns, or after some seconds: these are for those who listen.
    if heard && is_last {
        std::thread::sleep(Duration::MAX);
    }
    i32::from(taken_over && !is_last)
}

/// The end of a bell that a loop watches.
pub(crate) struct Hears(UdpSocket);

/// The end of a bell that any thread may ring.
pub(crate) struct Rings(UdpSocket);

/// Makes a bell: two sockets that take datagrams from each other alone.
pub(crate) fn bell() -> io::Result<(Hears, Rings)> {
    let (hears, rings) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    hears.connect(rings.local_addr()?)?;
    rings.connect(hears.local_addr()?)?;
    hears.set_nonblocking(true)?;
    rings.set_nonblocking(true)?;
    Ok((Hears(hears), Rings(rings)))
}

impl Rings {
    /// Sends one byte. A bell that is full has rung already.
    pub(crate) fn ring(&self) {
        let _ = self.0.send(&[0]);
    }
}

impl Hears {
    /// What to watch.
    pub(crate) fn number(&self) -> Fd {
        number_of_socket(self.0.as_raw_socket())
    }

    /// Takes back all rings.
    pub(crate) fn empty(&self) {
        let mut byte = [0; 1];
        while self.0.recv(&mut byte).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::signal::{SignalKind, signal};
    use crate::time::timeout;

    /// As the system calls it: on another thread. Wine 8 cannot send Ctrl-Break.
    fn press(event: u32) -> i32 {
        // SAFETY: the handler takes a number.
        let pressed = std::thread::spawn(move || unsafe { handle(event) });
        pressed.join().expect("no panic")
    }

    #[test]
    fn ctrl_break_is_heard_by_all_and_stays_off() {
        const LONG: Duration = Duration::from_secs(20);
        assert_eq!(press(CTRL_BREAK_EVENT), 0, "nobody has listened yet");
        crate::run(async {
            let (kind, other) = (SignalKind::ctrl_break(), SignalKind::interrupt());
            let mut listeners = [signal(kind).expect("a bell"), signal(kind).expect("a bell")];
            let mut interrupt = signal(other).expect("a bell");
            for _ in 0..3 {
                assert_eq!(press(CTRL_BREAK_EVENT), 1);
                for listener in &mut listeners {
                    assert_eq!(timeout(LONG, listener.recv()).await, Ok(Some(())));
                }
            }
            assert!(timeout(Duration::from_millis(10), interrupt.recv()).await.is_err());
            assert_eq!(press(CTRL_C_EVENT), 1);
            assert_eq!(timeout(LONG, interrupt.recv()).await, Ok(Some(())));
        })
        .expect("a loop");
        assert_eq!(press(CTRL_BREAK_EVENT), 1, "it stays off");
        assert_eq!(press(CTRL_LOGOFF_EVENT), 0, "nobody has ever listened");
        assert!(registry().registered.is_empty(), "the listeners are gone");
    }
}

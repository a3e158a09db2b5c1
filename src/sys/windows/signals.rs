//! Console control events (Ctrl-C, Ctrl-Break, closing the window) as signals with the C library's numbers.
//!
//! The system calls the handler on a thread of its own, so unlike a Unix signal handler it may lock.

use std::io;
use std::net::UdpSocket;
use std::os::windows::io::AsRawSocket;
use std::sync::Mutex;
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler,
};

use super::{Fd, number_of_socket};
use crate::sys::lock;

pub(crate) const INTERRUPT: i32 = 2;
pub(crate) const BREAK: i32 = 21;
/// The console window is being closed.
pub(crate) const HANGUP: i32 = 1;
/// The user logs off, or the machine shuts down. Windows sends these to services only.
pub(crate) const TERMINATE: i32 = 15;

/// The signals that ask the program to end. Windows has no others.
pub(crate) const SHUTDOWN: &[i32] = &[INTERRUPT, BREAK, HANGUP, TERMINATE];

/// Whether the signal does not exist on Windows.
pub(crate) fn is_forbidden(number: i32) -> bool {
    !SHUTDOWN.contains(&number)
}

/// The id of a registered action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Action(u64);

struct Registered {
    id: u64,
    number: i32,
    action: Box<dyn Fn() + Send + Sync>,
}

struct Registry {
    last_id: u64,
    registered: Vec<Registered>,
    /// Signals that ever had a listener. Their default action stays off, as on Unix: whether Ctrl-C ends the program
    /// must not depend on whether a listener exists at that moment.
    taken_over: Vec<i32>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    last_id: 0,
    registered: Vec::new(),
    taken_over: Vec::new(),
});

/// Calls `action` on each occurrence of the signal.
///
/// # Safety
///
/// No requirement on Windows. `unsafe` because on Unix the action runs in a signal handler.
pub(crate) unsafe fn register(number: i32, action: impl Fn() + Send + Sync + 'static) -> io::Result<Action> {
    let mut registry = lock(&REGISTRY);
    // The first listener registers the handler.
    // SAFETY: the handler is a function of this program, valid until the process ends.
    if registry.taken_over.is_empty() && unsafe { SetConsoleCtrlHandler(Some(handle), 1) } == 0 {
        return Err(io::Error::last_os_error());
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

/// Removes an action. False if it was not registered.
pub(crate) fn unregister(action: Action) -> bool {
    let gone = {
        let mut registry = lock(&REGISTRY);
        let at = registry.registered.iter().position(|one| one.id == action.0);
        at.map(|at| registry.registered.swap_remove(at))
    };
    gone.is_some()
}

/// Calls the signal's actions, and returns whether the default action is off. Runs on a thread of the system.
unsafe extern "system" fn handle(event: u32) -> i32 {
    let (number, is_last) = match event {
        CTRL_C_EVENT => (INTERRUPT, false),
        CTRL_BREAK_EVENT => (BREAK, false),
        CTRL_CLOSE_EVENT => (HANGUP, true),
        CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT => (TERMINATE, true),
        _ => return 0,
    };
    let registry = lock(&REGISTRY);
    let mut heard = false;
    for one in registry.registered.iter().filter(|one| one.number == number) {
        // An action of a `SignalHub`: it sets a flag and writes to the wake-up socket, and does not block.
        (one.action)();
        heard = true;
    }
    let taken_over = registry.taken_over.contains(&number);
    drop(registry);
    // The system ends the process when this returns, or after some seconds: blocking leaves the listeners that time.
    if heard && is_last {
        std::thread::sleep(Duration::MAX);
    }
    i32::from(taken_over && !is_last)
}

/// The end of a wake-up socket pair that the loop watches.
pub(crate) struct WakeReceiver(UdpSocket);

/// The end of a wake-up socket pair that any thread may write to.
pub(crate) struct WakeSender(UdpSocket);

/// Creates a wake-up socket pair: two UDP sockets that accept datagrams only from each other.
pub(crate) fn wake_pair() -> io::Result<(WakeReceiver, WakeSender)> {
    let (receiver, sender) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    receiver.connect(sender.local_addr()?)?;
    sender.connect(receiver.local_addr()?)?;
    receiver.set_nonblocking(true)?;
    sender.set_nonblocking(true)?;
    Ok((WakeReceiver(receiver), WakeSender(sender)))
}

impl WakeSender {
    /// Sends one byte. If the socket is full, the loop has a wake-up pending already.
    pub(crate) fn wake(&self) {
        let _ = self.0.send(&[0]);
    }
}

impl WakeReceiver {
    /// The descriptor to watch.
    pub(crate) fn number(&self) -> Fd {
        number_of_socket(self.0.as_raw_socket())
    }

    /// Drains the socket.
    pub(crate) fn drain(&self) {
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

    /// Calls the handler on another thread, as the system does. Wine 8 cannot send Ctrl-Break.
    fn press(event: u32) -> i32 {
        // SAFETY: the handler takes a number and accesses no memory of the caller.
        let pressed = std::thread::spawn(move || unsafe { handle(event) });
        pressed.join().expect("no panic")
    }

    #[test]
    fn ctrl_break_is_heard_by_all_and_stays_off() {
        const LONG: Duration = Duration::from_secs(20);
        assert_eq!(press(CTRL_BREAK_EVENT), 0, "no listener yet");
        crate::run(async {
            let (kind, other) = (SignalKind::ctrl_break(), SignalKind::interrupt());
            let mut listeners = [
                signal(kind).expect("a wake-up pair"),
                signal(kind).expect("a wake-up pair"),
            ];
            let mut interrupt = signal(other).expect("a wake-up pair");
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
        assert_eq!(press(CTRL_LOGOFF_EVENT), 0, "never had a listener");
        assert!(lock(&REGISTRY).registered.is_empty(), "the listeners are gone");
    }
}

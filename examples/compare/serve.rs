//! The echo servers, each the whole of a process.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use windlass::{Builder, DriverChoice};

/// How much the servers by hand read at once: the size of windlass's own buffers and enough for any request here.
pub(crate) const BUFFER_LEN: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Proactor,
    Reactor,
    Epoll,
    Uring,
    Asyncio,
    Uvloop,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] = [
        Kind::Proactor,
        Kind::Reactor,
        Kind::Epoll,
        Kind::Uring,
        Kind::Asyncio,
        Kind::Uvloop,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Proactor => "proactor",
            Kind::Reactor => "reactor",
            Kind::Epoll => "epoll",
            Kind::Uring => "uring",
            Kind::Asyncio => "asyncio",
            Kind::Uvloop => "uvloop",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Kind::Proactor => "windlass Proactor (io_uring)",
            Kind::Reactor => "windlass Reactor (epoll)",
            Kind::Epoll => "epoll by hand",
            Kind::Uring => "io_uring by hand",
            Kind::Asyncio => "asyncio SelectorEventLoop",
            Kind::Uvloop => "uvloop",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or(format!("no server is called '{name}'"))
    }
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Proactor => windlass_server(DriverChoice::Proactor),
        Kind::Reactor => windlass_server(DriverChoice::Reactor),
        Kind::Epoll => epoll_server(),
        #[cfg(feature = "proactor")]
        Kind::Uring => crate::serve_uring::serve(),
        #[cfg(not(feature = "proactor"))]
        Kind::Uring => Err(io::Error::other("built without the feature proactor")),
        Kind::Asyncio | Kind::Uvloop => Err(io::Error::other("Python serves these")),
    }
}

/// The README's server, as anybody would write it.
fn windlass_server(driver: DriverChoice) -> io::Result<()> {
    use windlass::net::{TcpListener, TcpStream};

    async fn echo(stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let bytes = stream.read_managed().await?;
            if bytes.is_empty() {
                return Ok(());
            }
            stream.write_all(bytes).await.0?;
        }
    }

    let event_loop = Builder::new().driver(driver).build()?;
    event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A peer that resets its connection ends its own task, and nothing else.
            windlass::spawn(async move {
                let _ = echo(stream).await;
            });
        }
    })?
}

/// The least that epoll can do: wait, receive, send; no queue, no timer, no task.
fn epoll_server() -> io::Result<()> {
    let listener = listen()?;
    let epoll = Epoll::new()?;
    let door = listener.as_raw_fd();
    epoll.add(door, door as u64)?;
    // Level-triggered and one call per event: with one request in the air per connection nothing can be left behind.
    let mut buffer = vec![0; BUFFER_LEN];
    let mut events = Events::new();
    loop {
        for &event in epoll.wait(&mut events, -1)? {
            let fd = event as RawFd;
            if fd == door {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let fd = stream.into_raw_fd();
                epoll.add(fd, fd as u64)?;
            } else if !echo_once(fd, &mut buffer) {
                // SAFETY: the descriptor came from `into_raw_fd` above and is in no other hands; closing it also takes
                // it out of the epoll set.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
}

/// False when the connection is over.
fn echo_once(fd: RawFd, buffer: &mut [u8]) -> bool {
    // SAFETY: the kernel writes at most the buffer's length to it.
    let count = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    let Ok(count) = usize::try_from(count) else {
        return false;
    };
    // SAFETY: the kernel reads `count` bytes that it has just written. They are less than a socket's send buffer, which
    // is empty, because the peer has read the last echo before it sends again.
    let sent = unsafe { libc::send(fd, buffer.as_ptr().cast(), count, libc::MSG_NOSIGNAL) };
    count > 0 && sent == count as isize
}

pub(crate) fn listen() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    print_port(listener.local_addr()?.port())?;
    Ok(listener)
}

fn print_port(port: u16) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{port}")?;
    output.flush()
}

/// An epoll set, for the server above and for the load.
pub(crate) struct Epoll {
    fd: OwnedFd,
}

pub(crate) struct Events {
    raw: [libc::epoll_event; 128],
    ids: Vec<u64>,
}

impl Events {
    pub(crate) fn new() -> Events {
        Events {
            raw: [libc::epoll_event { events: 0, u64: 0 }; 128],
            ids: Vec::with_capacity(128),
        }
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    /// Watches for something to read.
    pub(crate) fn add(&self, fd: RawFd, id: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: id,
        };
        // SAFETY: the kernel reads one local event.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The ids of what can be read.
    pub(crate) fn wait<'a>(&self, events: &'a mut Events, millis: i32) -> io::Result<&'a [u64]> {
        let room = events.raw.len() as i32;
        // SAFETY: the kernel writes at most `room` events to the array.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.raw.as_mut_ptr(), room, millis) };
        events.ids.clear();
        match usize::try_from(count) {
            Ok(count) => events.ids.extend(events.raw[..count].iter().map(|event| event.u64)),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(&events.ids)
    }

    /// Waits with a timeout in nanoseconds, as nobody does who has no short timers.
    pub(crate) fn sleep(&self, events: &mut Events, pause: Duration) -> io::Result<()> {
        let time = libc::timespec {
            tv_sec: pause.as_secs() as libc::time_t,
            tv_nsec: pause.subsec_nanos().into(),
        };
        let (epoll, room) = (self.fd.as_raw_fd(), events.raw.len());
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: the kernel reads a local timespec and writes at most `room` events to the array; there is no mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.raw.as_mut_ptr(),
                room,
                &time,
                no_mask,
                0,
            )
        };
        match count {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

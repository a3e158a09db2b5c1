//! Platform helpers of the tests, for Windows and Wine.

#![allow(dead_code, unused_imports, reason = "not every build of the suite uses every helper")]

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::os::windows::io::AsRawSocket;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpStream;

use windows_sys::Win32::Foundation::{FILETIME, GetHandleInformation, HANDLE};
use windows_sys::Win32::Networking::WinSock::{LINGER, SO_LINGER, SOL_SOCKET, setsockopt};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};

use super::variable;

/// Makes a socket send a reset when it is closed. Sockets of the null driver are left alone.
pub(crate) fn reset_on_close(socket: &impl AsRawSocket) {
    let socket = socket.as_raw_socket();
    if (socket as i64) < 0 {
        return;
    }
    let linger = LINGER {
        l_onoff: 1,
        l_linger: 0,
    };
    let len = size_of_val(&linger) as i32;
    // SAFETY: the socket is open, and the option's value outlives the call.
    let result = unsafe { setsockopt(socket as usize, SOL_SOCKET, SO_LINGER, (&raw const linger).cast(), len) };
    assert_eq!(result, 0, "SO_LINGER: {}", std::io::Error::last_os_error());
}

/// The number of open handles of this process. Wine 8 always reports zero, so this probes each handle: handles are
/// multiples of four, and the lowest free one is used.
pub(crate) fn open_descriptors() -> usize {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // The one-time cost of the first socket of a process is not a leak.
    ONCE.call_once(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let _client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    });
    // After this many closed handles in a row there are no more open ones.
    const GAP: usize = 1024;
    let (mut open, mut last, mut number) = (0, 0, 1);
    while number <= last + GAP {
        let mut flags = 0;
        // SAFETY: the system writes to the local; a number that is not a handle is an error.
        if unsafe { GetHandleInformation((number * 4) as HANDLE, &mut flags) } != 0 {
            (open, last) = (open + 1, number);
        }
        number += 1;
    }
    open
}

/// The CPU time of this thread.
pub(crate) fn thread_time() -> Duration {
    let zero = FILETIME {
        dwLowDateTime: 0,
        dwHighDateTime: 0,
    };
    let (mut made, mut ended, mut kernel, mut user) = (zero, zero, zero, zero);
    // SAFETY: the system writes to the locals.
    let result = unsafe { GetThreadTimes(GetCurrentThread(), &mut made, &mut ended, &mut kernel, &mut user) };
    assert_ne!(result, 0, "{}", std::io::Error::last_os_error());
    let ticks = |time: FILETIME| (u64::from(time.dwHighDateTime) << 32) | u64::from(time.dwLowDateTime);
    Duration::from_nanos((ticks(kernel) + ticks(user)) * 100)
}

/// System calls are never interrupted on Windows.
pub(crate) fn interrupt_if_asked() -> Option<()> {
    assert!(variable::<u32>("WINDLASS_TEST_ITIMER").is_none_or(|on| on == 0));
    None
}

/// Only Linux has io_uring.
pub(crate) fn refuse_if_asked() -> bool {
    assert!(std::env::var_os("WINDLASS_TEST_REFUSE").is_none());
    false
}

/// The error codes that the tests provoke.
pub(crate) mod codes {
    pub(crate) const RESET: i32 = 10054;
    pub(crate) const REFUSED: i32 = 10061;
    pub(crate) const TOO_LONG: i32 = 10040;
    pub(crate) const IN_USE: i32 = 10048;
    pub(crate) const INVALID: i32 = 10022;
    /// A file that was opened without the needed access: access denied.
    pub(crate) const BAD_FD: i32 = 5;
    pub(crate) const BROKEN_PIPE: i32 = 109;
}

/// The raw socket type of sources that the loop can watch.
pub(crate) type RawSource = std::os::windows::io::RawSocket;

/// A raw socket that can be watched, for callbacks that must not own it.
pub(crate) struct Number(pub(crate) RawSource);

impl AsRawSocket for Number {
    fn as_raw_socket(&self) -> RawSource {
        self.0
    }
}

/// The raw socket of a source.
pub(crate) fn number_of(source: &impl AsRawSocket) -> RawSource {
    source.as_raw_socket()
}

/// Whether the socket belongs to the null driver.
pub(crate) fn is_null_driver_number(number: RawSource) -> bool {
    !windlass::driver::FdSpace::Split.is_kernel(number as i32)
}

/// The trait that socket2 needs to set options.
pub(crate) use std::os::windows::io::AsSocket as AsSocketRef;

/// The positional I/O of Unix for std's files. The file's position does not change.
pub(crate) trait FileExt {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize>;
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize>;
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()>;
    fn write_all_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()>;
}

impl FileExt for std::fs::File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let before = (&mut &*self).stream_position()?;
        let result = std::os::windows::fs::FileExt::seek_read(self, buf, offset);
        (&mut &*self).seek(SeekFrom::Start(before))?;
        result
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        let before = (&mut &*self).stream_position()?;
        let result = std::os::windows::fs::FileExt::seek_write(self, buf, offset);
        (&mut &*self).seek(SeekFrom::Start(before))?;
        result
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.read_at(&mut buf[filled..], offset + filled as u64)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        let mut written = 0;
        while written < buf.len() {
            written += self.write_at(&buf[written..], offset + written as u64)?;
        }
        Ok(())
    }
}

/// Windows has no SIGPIPE.
pub(crate) fn let_signals_kill() {}

/// Windows does not limit the number of handles of a process.
pub(crate) fn limit_descriptors(_soft: u64) {}

/// The same; but Wine has the limit of the host system.
pub(crate) fn allow_all_descriptors() -> usize {
    1_000 + 200
}

/// A stream with several watchers.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Rc<TcpStream>);

impl Deref for Shared {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRawSocket for Shared {
    fn as_raw_socket(&self) -> RawSource {
        self.0.as_raw_socket()
    }
}

/// Sockets that are not open.
pub(crate) const CLOSED_NUMBERS: [RawSource; 2] = [RawSource::MAX, 1_000_000];

/// The error codes for them.
pub(crate) const NOT_OPEN: &[i32] = &[6, 10038];

/// A pipe: (receiver of the loop, sender for a thread).
pub(crate) fn pipe_from_std() -> (windlass::io::pipe::Receiver, impl Write + Send + 'static) {
    let (sender, receiver) = windlass::io::pipe::pipe().expect("a pipe");
    let theirs = sender.into_handle().expect("nothing is under way");
    (receiver, std::fs::File::from(theirs))
}

/// Windows does not report it.
pub(crate) fn has_space(_metadata: &windlass::fs::Metadata, _bytes: u64) -> bool {
    true
}

/// Windows has no such option.
pub(crate) fn assert_shares_no_port(_listener: &socket2::SockRef<'_>) {}

/// socket2 cannot read these on Windows.
pub(crate) fn assert_keepalive(_socket: &socket2::SockRef<'_>, _idle: Duration, _interval: Duration) {}

/// Whether a reset is returned by every later call, not only once.
pub(crate) const REPEATS_RESETS: bool = true;

/// Whether this is Wine instead of Windows.
pub(crate) fn is_wine() -> bool {
    // SAFETY: the names end in NUL; the library is already loaded, and the function exists only in Wine.
    unsafe {
        let library = GetModuleHandleA(c"ntdll.dll".as_ptr().cast());
        GetProcAddress(library, c"wine_get_version".as_ptr().cast()).is_some()
    }
}

/// std writes only the first slice.
pub(crate) fn write_vectored(mut file: &std::fs::File, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
    let whole: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
    file.write(&whole)
}

/// std reads only into the first slice.
pub(crate) fn read_vectored(
    mut file: &std::fs::File,
    slices: &mut [std::io::IoSliceMut<'_>],
) -> std::io::Result<usize> {
    let mut bytes = vec![0; slices.iter().map(|slice| slice.len()).sum()];
    let count = file.read(&mut bytes)?;
    let mut rest = &bytes[..count];
    for slice in slices {
        let (part, others) = rest.split_at(rest.len().min(slice.len()));
        slice[..part.len()].copy_from_slice(part);
        rest = others;
    }
    Ok(count)
}

/// A socket as messages show it.
pub(crate) fn shown(number: RawSource) -> i32 {
    number as i32
}

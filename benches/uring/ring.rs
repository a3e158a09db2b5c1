//! A ring set up as in windlass, with or without further features.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{EnterFlags, IoUring, squeue, types};

/// The number of buffers in the ring, as in windlass' pool.
pub(crate) const BUFFERS: u16 = 256;

/// What differs from the ring of windlass.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setup {
    pub(crate) no_sqarray: bool,
    pub(crate) registered: bool,
    pub(crate) io_wait: bool,
    pub(crate) plain_arguments: bool,
}

pub(crate) struct Ring {
    pub(crate) inner: IoUring,
    setup: Setup,
    /// The ring's descriptor, or its index among the registered ones.
    number: i32,
}

/// `io_uring_rsrc_update`, as the registration of a ring takes it.
#[repr(C)]
struct Registration {
    index: u32,
    reserved: u32,
    fd: u64,
}

const REGISTER_RING_FDS: i32 = 20;
const ENTER_REGISTERED_RING: u32 = 1 << 4;

impl Ring {
    pub(crate) fn open(setup: Setup) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder
            .setup_clamp()
            .setup_cqsize(4096)
            .setup_submit_all()
            .setup_taskrun_flag()
            .setup_single_issuer()
            .setup_defer_taskrun();
        if setup.no_sqarray {
            builder.setup_no_sqarray();
        }
        let inner = builder.build(1024)?;
        let mut number = inner.as_raw_fd();
        if setup.registered {
            let mut ring = Registration {
                index: u32::MAX,
                reserved: 0,
                fd: number as u64,
            };
            // The crate forgets the index between two calls. SAFETY: the kernel reads and writes one local struct.
            let code =
                unsafe { libc::syscall(libc::SYS_io_uring_register, number, REGISTER_RING_FDS, &raw mut ring, 1) };
            if code != 1 {
                return Err(io::Error::last_os_error());
            }
            number = ring.index as i32;
        }
        Ok(Ring { inner, setup, number })
    }

    /// Submits, and waits for `wanted` completions. EINTR counts as none.
    pub(crate) fn enter(&mut self, wanted: u32) -> io::Result<()> {
        let to_submit = self.inner.submission().len() as u32;
        let mut flags = EnterFlags::GETEVENTS;
        if !self.setup.io_wait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let args = types::SubmitArgs::new();
        let (args, len) = match self.setup.plain_arguments {
            true => (std::ptr::null(), 0),
            false => {
                flags |= EnterFlags::EXT_ARG;
                (&raw const args, size_of_val(&args))
            }
        };
        let mut flags = flags.bits();
        if self.setup.registered {
            flags |= ENTER_REGISTERED_RING;
        }
        // SAFETY: `EXT_ARG` says that the argument is a `SubmitArgs`, which outlives the call.
        let code = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.number,
                to_submit,
                wanted,
                flags,
                args,
                len,
            )
        };
        match code {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }

    /// Queues a submission.
    ///
    /// # Safety
    ///
    /// The entry's memory stays where it is until the operation has completed.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.inner.submission().push(entry) }.is_err() {
            self.enter(0)?;
        }
        Ok(())
    }

    /// The next completion: its user data, result and flags.
    pub(crate) fn next(&mut self) -> Option<(u64, i32, u32)> {
        let entry = self.inner.completion().next()?;
        Some((entry.user_data(), entry.result(), entry.flags()))
    }
}

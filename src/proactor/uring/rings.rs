//! The rings that the process shares with the kernel, mapped a second time.
//!
//! The io-uring crate sets the rings up and makes the system calls, but copies each completion by a call that is not inlined, and
//! reads the flags of the submission ring by others. Two completions of an echo took 84 instructions to reap. So the driver maps
//! the same memory again, and only it reads and writes the heads and tails; the crate's queues are never used.
//!
//! | word | written by | with |
//! |---|---|---|
//! | tail of the submission ring, its entries | this thread | release: the kernel sees an entry before the tail that covers it |
//! | head of the submission ring, flags | the kernel | |
//! | tail of the completion ring, its entries | the kernel, usually while this thread is in `enter` | |
//! | head of the completion ring | this thread | release: the kernel may overwrite an entry that was read |

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use io_uring::{IoUring, squeue};

/// The kernel's `io_uring_params`. The crate's `Parameters` is documented to be a transparent wrapper of it.
#[repr(C)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: SubmissionOffsets,
    cq: CompletionOffsets,
}

#[repr(C)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

#[repr(C)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

const _: () = assert!(size_of::<Params>() == size_of::<io_uring::Parameters>() && size_of::<Params>() == 120);

/// One mapping has both rings: Linux 5.4.
const SINGLE_MMAP: u32 = 1;

/// Offsets for `mmap`.
const RINGS: libc::off_t = 0;
const ENTRIES: libc::off_t = 0x1000_0000;

/// The flags of the submission ring: the completion ring has overflowed, completions are deferred.
const CQ_OVERFLOW: u32 = 2;
const TASKRUN: u32 = 4;

/// The kernel's `io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Cqe {
    pub(super) user_data: u64,
    /// Result and flags.
    pub(super) result: u64,
}

const _: () = assert!(size_of::<Cqe>() == 16 && size_of::<squeue::Entry>() == 64);

pub(super) struct Rings {
    /// A copy of the submission ring's tail.
    tail: u32,
    /// The ring counts as full when the tail is here. The kernel may have made room since.
    full_at: u32,
    sq_head: NonNull<AtomicU32>,
    sq_tail: NonNull<AtomicU32>,
    sq_flags: NonNull<AtomicU32>,
    /// The number of entries, a power of two, less one.
    sq_mask: u32,
    sqes: NonNull<squeue::Entry>,
    cq_head: NonNull<AtomicU32>,
    cq_tail: NonNull<AtomicU32>,
    cq_mask: u32,
    cqes: NonNull<Cqe>,
    /// Unmapped when the pointers above are gone.
    _rings: Mapping,
    _entries: Mapping,
}

impl Rings {
    /// Maps the rings of `ring`. They must not be used after it is closed.
    pub(super) fn map(ring: &IoUring) -> io::Result<Rings> {
        // SAFETY: the crate documents `Parameters` as a transparent wrapper of `io_uring_params`, whose size was compared.
        let params = unsafe { &*(&raw const *ring.params()).cast::<Params>() };
        if params.features & SINGLE_MMAP == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let sq_len = params.sq.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_len = params.cq.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let rings = Mapping::new(ring, RINGS, sq_len.max(cq_len))?;
        let entries = Mapping::new(ring, ENTRIES, params.sq_entries as usize * size_of::<squeue::Entry>())?;
        Ok(Rings {
            tail: 0,
            full_at: params.sq_entries,
            sq_head: rings.at(params.sq.head),
            sq_tail: rings.at(params.sq.tail),
            sq_flags: rings.at(params.sq.flags),
            sq_mask: params.sq_entries - 1,
            sqes: entries.at(0),
            cq_head: rings.at(params.cq.head),
            cq_tail: rings.at(params.cq.tail),
            cq_mask: params.cq_entries - 1,
            cqes: rings.at(params.cq.cqes),
            _rings: rings,
            _entries: entries,
        })
    }

    /// The number of submissions that the kernel has not taken.
    #[inline]
    pub(super) fn queued(&self) -> u32 {
        self.tail.wrapping_sub(acquire(self.sq_head))
    }

    #[inline]
    pub(super) fn is_full(&mut self) -> bool {
        self.tail == self.full_at && self.find_room()
    }

    /// Notes what the kernel has taken. Returns whether the submission ring is still full.
    #[cold]
    fn find_room(&mut self) -> bool {
        self.full_at = acquire(self.sq_head).wrapping_add(self.sq_mask + 1);
        self.tail == self.full_at
    }

    /// Queues a submission. The ring must not be full.
    ///
    /// # Safety
    ///
    /// The memory that the entry points to belongs to the operation until it completes.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        debug_assert!(!self.is_full());
        let index = self.tail & self.sq_mask;
        // SAFETY: the ring has a power of two of entries, so the index is within it. The kernel does not read the entry
        // before the tail passes it, and this thread is the only writer.
        unsafe { self.sqes.add(index as usize).write(entry) };
        self.tail = self.tail.wrapping_add(1);
        release(self.sq_tail, self.tail);
    }

    /// Whether an `enter` would post completions: deferred ones, or some that the ring had no room for.
    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        acquire(self.sq_flags) & (CQ_OVERFLOW | TASKRUN) != 0
    }

    /// Whether the kernel holds back completions because the ring was full.
    #[inline]
    pub(super) fn has_overflowed(&self) -> bool {
        acquire(self.sq_flags) & CQ_OVERFLOW != 0
    }

    /// The number of completions that were not reaped.
    #[inline]
    pub(super) fn completed(&self) -> u32 {
        acquire(self.cq_tail).wrapping_sub(load(self.cq_head))
    }

    /// The number of completions that the ring has room for.
    pub(super) fn room(&self) -> u32 {
        self.cq_mask + 1 - self.completed()
    }

    /// Calls `each` with the first `count` completions, of which there must be as many, and removes them.
    #[inline(always)]
    pub(super) fn reap(&mut self, count: u32, mut each: impl FnMut(Cqe)) {
        debug_assert!(count <= self.completed());
        let mut head = load(self.cq_head);
        let tail = head.wrapping_add(count);
        while head != tail {
            let index = head & self.cq_mask;
            // SAFETY: the ring has a power of two of entries, so the index is within it. The kernel wrote the entry before
            // the tail, and does not overwrite it before the head passes it.
            each(unsafe { self.cqes.add(index as usize).read() });
            head = head.wrapping_add(1);
        }
        release(self.cq_head, tail);
    }
}

/// A word that only this thread writes.
#[inline(always)]
fn load(word: NonNull<AtomicU32>) -> u32 {
    // SAFETY: all words are within the mapping, which the caller's `Rings` keeps.
    unsafe { word.as_ref() }.load(Relaxed)
}

/// A word that the kernel writes.
#[inline(always)]
fn acquire(word: NonNull<AtomicU32>) -> u32 {
    // SAFETY: as in `load`.
    unsafe { word.as_ref() }.load(Acquire)
}

#[inline(always)]
fn release(word: NonNull<AtomicU32>, value: u32) {
    // SAFETY: as in `load`.
    unsafe { word.as_ref() }.store(value, Release);
}

/// A mapping of a part of the ring's memory.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(ring: &IoUring, offset: libc::off_t, len: usize) -> io::Result<Mapping> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, ring.as_raw_fd(), offset) };
        let start = match start {
            libc::MAP_FAILED => return Err(io::Error::last_os_error()),
            start => NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
        };
        let mapping = Mapping { start, len };
        // SAFETY: exactly this mapping. A forked child must not use the ring of its parent.
        match unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address of what the kernel says is at this offset.
    fn at<T>(&self, offset: u32) -> NonNull<T> {
        debug_assert!(offset as usize + size_of::<T>() <= self.len);
        // SAFETY: the kernel's offsets are within the mapping.
        unsafe { self.start.add(offset as usize) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly this mapping, which `Rings` no longer uses.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

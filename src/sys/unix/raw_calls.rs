//! `recv`, `send`, `epoll_wait` and `preadv2` as direct system calls, on Linux on x86-64 and AArch64.
//!
//! In libc they are cancellation points of `pthread_cancel`. Once a process has a second thread (a shard, the blocking pool),
//! glibc enables and disables cancellation around each call, which costs about 50 instructions, a tenth of an echo's user
//! time for its two calls. Rust threads are never cancelled, so nothing is lost.

use std::arch::asm;

use super::Fd;

/// As `libc::recv`, errno included.
///
/// # Safety
///
/// `ptr` is valid for writes of `len` bytes, which nothing else uses until this returns.
#[inline(never)]
pub(super) unsafe fn recv(fd: Fd, ptr: *mut u8, len: usize, flags: libc::c_int) -> libc::ssize_t {
    // SAFETY: the kernel writes to the caller's buffer alone, before the call returns; there is no address to store.
    unsafe { call(libc::SYS_recvfrom, fd, ptr, len, flags as usize, 0) }
}

/// As `libc::send`, errno included.
///
/// # Safety
///
/// `ptr` is valid for reads of `len` bytes, which nothing changes until this returns.
#[inline(never)]
pub(super) unsafe fn send(fd: Fd, ptr: *const u8, len: usize, flags: libc::c_int) -> libc::ssize_t {
    // SAFETY: the kernel reads from the caller's buffer alone, before the call returns; there is no address to read.
    unsafe { call(libc::SYS_sendto, fd, ptr.cast_mut(), len, flags as usize, 0) }
}

/// As `libc::epoll_wait`, errno included.
///
/// # Safety
///
/// `events` is valid for writes of `len` events, which nothing else uses until this returns.
#[cfg(feature = "reactor")]
#[inline(never)]
pub(super) unsafe fn epoll_wait(
    fd: Fd,
    events: *mut libc::epoll_event,
    len: libc::c_int,
    timeout: libc::c_int,
) -> libc::c_int {
    // SAFETY: the kernel writes to the caller's events alone, before the call returns. AArch64 has `epoll_pwait` alone; without a
    // signal mask it does the same.
    unsafe {
        call(
            libc::SYS_epoll_pwait,
            fd,
            events.cast(),
            len as usize,
            timeout as usize,
            0,
        ) as libc::c_int
    }
}

/// As `libc::preadv2`, errno included.
///
/// # Safety
///
/// `slices` points to `count` slices, each valid for writes, which nothing else uses until this returns.
#[inline(never)]
pub(super) unsafe fn preadv2(
    fd: Fd,
    slices: *const libc::iovec,
    count: libc::c_int,
    offset: libc::off_t,
    flags: libc::c_int,
) -> libc::ssize_t {
    let slices = slices.cast_mut().cast();
    // SAFETY: the kernel reads the slices and writes to the memory that they describe, before the call returns. The offset
    // is one 64-bit argument; the kernel ignores the upper half that follows it.
    unsafe {
        call(
            libc::SYS_preadv2,
            fd,
            slices,
            count as usize,
            offset as usize,
            flags as usize,
        )
    }
}

/// A system call whose fifth argument is 0: the address of `recvfrom` and `sendto`, the signal mask of `epoll_pwait`.
///
/// # Safety
///
/// As that system call: the memory behind `ptr` is valid until this returns.
#[inline(always)]
unsafe fn call(number: libc::c_long, fd: Fd, ptr: *mut u8, len: usize, fourth: usize, sixth: usize) -> libc::ssize_t {
    let result: isize;
    // SAFETY: the arguments are in the registers of the kernel's calling convention, and the registers that the kernel
    // changes are listed. The rest is the caller's promise.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") fd as isize,
            in("rsi") ptr,
            in("rdx") len,
            in("r10") fourth,
            in("r8") 0usize,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as isize,
            inlateout("x0") fd as isize => result,
            in("x1") ptr,
            in("x2") len,
            in("x3") fourth,
            in("x4") 0usize,
            in("x5") sixth,
            options(nostack, preserves_flags),
        );
    }
    match result {
        0.. => result,
        _ => fail(result),
    }
}

/// Stores the error where `std::io::Error::last_os_error` finds it.
#[cold]
fn fail(result: isize) -> libc::ssize_t {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = -result as libc::c_int };
    -1
}

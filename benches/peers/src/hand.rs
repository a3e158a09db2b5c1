//! The hand-written loops in workloads other than echo: sleeps, file reads, wakes.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use crate::contender::Contender;
use crate::kit::clock::least_timer_slack;
use crate::kit::epoll::{Epoll, Events, Interest};
use crate::kit::hand_uring;
use crate::kit::histogram::Histogram;
use crate::kit::lateness::Lateness;
use crate::kit::process::own_cpu_time;
use crate::work::files::{BLOCK, DEPTHS, READS_PER_LOOK, offset};
use crate::work::{Numbers, Task, timers, wake};

pub(crate) fn work(contender: Contender, task: &Task) -> io::Result<Vec<f64>> {
    match (contender, task) {
        (Contender::Epoll, &Task::Lateness { length, count }) => {
            least_timer_slack();
            let (epoll, mut events) = (Epoll::new()?, Events::new());
            sleeps(length, count, || epoll.sleep(&mut events, length))
        }
        (Contender::Uring, &Task::Lateness { length, count }) => {
            let mut ring = hand_uring::ring(1)?;
            sleeps(length, count, || hand_uring::sleep(&mut ring, length))
        }
        (Contender::Pread, Task::Files { path, length }) => {
            // One thread makes one system call at a time: the depth makes no difference.
            let rate = pread(path, *length)?;
            Ok(DEPTHS.map(|_| rate).to_vec())
        }
        (Contender::Uring, Task::Files { path, length }) => {
            let rates: io::Result<Vec<f64>> = DEPTHS.iter().map(|&depth| ring_reads(path, depth, *length)).collect();
            rates
        }
        (Contender::Epoll, &Task::Wakes { core, count, length }) => wakes(core, count, length),
        _ => Err(io::Error::other("hand-written loops do not support this workload")),
    }
}

fn sleeps(length: Duration, count: usize, mut sleep: impl FnMut() -> io::Result<()>) -> io::Result<Vec<f64>> {
    let mut late = Lateness::default();
    let cpu = own_cpu_time()?;
    for _ in 0..count {
        let begin = Instant::now();
        sleep()?;
        late.add(begin.elapsed(), length);
    }
    timers::figures(&late, cpu)
}

fn pread(path: &Path, length: Duration) -> io::Result<f64> {
    let file = std::fs::File::open(path)?;
    let mut numbers = Numbers::new(3);
    let mut buffer = vec![0; BLOCK];
    let mut count = 0;
    let begin = Instant::now();
    while begin.elapsed() < length {
        for _ in 0..READS_PER_LOOK {
            file.read_exact_at(&mut buffer, offset(&mut numbers))?;
        }
        count += READS_PER_LOOK;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// Keeps `depth` reads in the ring.
fn ring_reads(path: &Path, depth: usize, length: Duration) -> io::Result<f64> {
    let file = std::fs::File::open(path)?;
    let mut numbers = Numbers::new(3);
    let mut buffers = vec![[0_u8; BLOCK]; depth];
    let mut ring = hand_uring::ring(1)?;
    let mut push = |ring: &mut IoUring, place: usize| {
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buffers[place].as_mut_ptr(), BLOCK as u32);
        let entry = entry.offset(offset(&mut numbers)).build().user_data(place as u64);
        // SAFETY: the file and the buffers outlive the ring's last read, which is waited for below, and a buffer has
        // one read at a time.
        unsafe { ring.submission().push(&entry) }.map_err(|_| io::Error::other("the ring is smaller than the depth"))
    };
    for place in 0..depth {
        push(&mut ring, place)?;
    }
    let (begin, mut count, mut in_flight) = (Instant::now(), 0, depth);
    while in_flight > 0 {
        ring.submit_and_wait(1)?;
        let is_over = begin.elapsed() >= length;
        loop {
            let Some(completion) = ring.completion().next() else {
                break;
            };
            if completion.result() != BLOCK as i32 {
                // Reads in flight write to these buffers until the ring is gone: leak both.
                std::process::exit(1);
            }
            count += 1;
            match is_over {
                true => in_flight -= 1,
                false => push(&mut ring, completion.user_data() as usize)?,
            }
        }
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// An eventfd in an epoll set, written by the other thread: the mechanism of a readiness loop's waker.
fn wakes(core: Option<usize>, count: usize, length: Duration) -> io::Result<Vec<f64>> {
    let bell = Arc::new(Bell::new()?);
    let latency = {
        let waker = Arc::clone(&bell);
        let thread = thread::spawn(move || waker.ring_rarely(core, count as u64));
        let mut latency = Histogram::default();
        for turn in 1..=count as u64 {
            bell.wait()?;
            latency.add_nanos(bell.now() - bell.rung_at.load(Ordering::Acquire));
            bell.heard.store(turn, Ordering::Release);
        }
        thread.join().expect("the waking thread does not panic")?;
        latency
    };
    bell.heard.store(0, Ordering::Release);
    let waker = Arc::clone(&bell);
    let thread = thread::spawn(move || waker.ring_often(core, length));
    let mut turn = 0;
    loop {
        bell.wait()?;
        if bell.is_over.load(Ordering::Acquire) {
            break;
        }
        turn += 1;
        bell.heard.store(turn, Ordering::Release);
    }
    let round_trip = thread.join().expect("the waking thread does not panic")?;
    Ok(wake::figures(latency.nanos(0.5), round_trip))
}

struct Bell {
    event: std::fs::File,
    epoll: Epoll,
    origin: Instant,
    rung_at: AtomicU64,
    heard: AtomicU64,
    is_over: AtomicBool,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and not owned elsewhere.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let epoll = Epoll::new()?;
        epoll.add(event.as_raw_fd(), 0, Interest::Read)?;
        Ok(Bell {
            event: event.into(),
            epoll,
            origin: Instant::now(),
            rung_at: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn wait(&self) -> io::Result<()> {
        let mut events = Events::new();
        while events.is_empty() {
            self.epoll.wait(&mut events, -1)?;
        }
        (&self.event).read_exact(&mut [0; 8])
    }

    fn ring(&self) -> io::Result<()> {
        (&self.event).write_all(&1_u64.to_ne_bytes())
    }

    fn ring_rarely(&self, core: Option<usize>, count: u64) -> io::Result<()> {
        wake::pin(core);
        for turn in 0..count {
            wake::wait_until(core, || self.heard.load(Ordering::Acquire) == turn);
            thread::sleep(wake::REST);
            self.rung_at.store(self.now(), Ordering::Release);
            self.ring()?;
        }
        Ok(())
    }

    fn ring_often(&self, core: Option<usize>, length: Duration) -> io::Result<f64> {
        wake::pin(core);
        let begin = Instant::now();
        let mut turn = 0;
        while begin.elapsed() < length {
            self.ring()?;
            turn += 1;
            wake::wait_until(core, || self.heard.load(Ordering::Acquire) == turn);
        }
        let nanos = begin.elapsed().as_nanos() as f64 / turn as f64;
        self.is_over.store(true, Ordering::Release);
        self.ring()?;
        Ok(nanos)
    }
}

//! Sending a file that is in the page cache.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::kit::clock::thread_time;
use crate::kit::machine::Machine;
use crate::kit::options::Options;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Way, interleave, table};
use crate::kit::scratch::Scratch;
use crate::kit::server;
use crate::kit::text::nanos;

const MIB: usize = 1 << 20;

/// The length of the file, which a round sends once.
const LEN: usize = 32 * MIB;

pub(crate) fn main(options: &Options) -> io::Result<()> {
    let rounds = options.number("--rounds", 60).div_ceil(3);
    let (_sink, port) = server::start(&["sink"], Machine::look().server_core())?;
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let scratch = Scratch::write("uring", LEN / MIB)?;
    let file = File::open(scratch.path())?;
    let mut progress = Progress::new(1);
    progress.step("file");
    let mut ways = Vec::new();
    for driver in options.drivers() {
        let path = scratch.path().to_path_buf();
        ways.push(Way::new(format!("windlass::io::copy, {}", driver.name), move || {
            let path = path.clone();
            driver.open()?.run_until_complete(async move {
                let mut file = windlass::fs::File::open(path).await?;
                let mut stream = windlass::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                let before = thread_time();
                windlass::io::copy(&mut file, &mut stream).await?;
                Ok(per_mib(before))
            })?
        }));
    }
    for (name, len) in [("64 KiB", 64 << 10), ("256 KiB", 256 << 10), ("1 MiB", MIB)] {
        let (file, mut stream, mut buffer) = (&file, connect()?, vec![0; len]);
        ways.push(Way::new(format!("reads and sends of {name}"), move || {
            let before = thread_time();
            for at in (0..LEN).step_by(len) {
                file.read_exact_at(&mut buffer, at as u64)?;
                stream.write_all(&buffer)?;
            }
            Ok(per_mib(before))
        }));
    }
    for (name, len) in [("64 KiB", 64 << 10), ("1 MiB", MIB)] {
        let (file, stream, (reader, writer)) = (&file, connect()?, io::pipe()?);
        // SAFETY: fcntl with these arguments touches no memory.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, len as libc::c_int) };
        ways.push(Way::new(format!("splices of {name}"), move || {
            let before = thread_time();
            let mut at = 0;
            while at < LEN as i64 {
                let mut left = splice(file, Some(&mut at), &writer, len)?;
                while left > 0 {
                    left -= splice(&reader, None, &stream, left)?;
                }
            }
            Ok(per_mib(before))
        }));
    }
    let (file, stream) = (&file, connect()?);
    ways.push(Way::new("sendfile", move || {
        let before = thread_time();
        let mut at = 0;
        while at < LEN as i64 {
            // SAFETY: the kernel reads and writes one local offset.
            if unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &mut at, LEN) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(per_mib(before))
    }));
    let measured = interleave(rounds, ways);
    progress.finish();
    println!("{}", table("send a cached file", "CPU/MiB", &measured, nanos));
    Ok(())
}

fn per_mib(before: std::time::Duration) -> f64 {
    (thread_time() - before).as_nanos() as f64 / (LEN / MIB) as f64
}

/// Moves up to `len` bytes. One of the two is a pipe.
fn splice(from: &impl AsRawFd, at: Option<&mut i64>, to: &impl AsRawFd, len: usize) -> io::Result<usize> {
    let (at, none) = (at.map_or(std::ptr::null_mut(), |at| at), std::ptr::null_mut());
    // SAFETY: the kernel reads and writes the offset, if there is one.
    match unsafe { libc::splice(from.as_raw_fd(), at, to.as_raw_fd(), none, len, 0) } {
        -1 => Err(io::Error::last_os_error()),
        count => Ok(count as usize),
    }
}

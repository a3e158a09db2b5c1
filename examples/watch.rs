//! Watching foreign descriptors: `cargo run --example watch`, then type; or `ls | cargo run --example watch`.
//!
//! A callback for standard input, and an awaited pipe from a child process.

#[cfg(unix)]
#[path = "support/mod.rs"]
mod support;

#[cfg(unix)]
use std::fs::File;
#[cfg(unix)]
use std::io::{self, Read};
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::process::{ChildStdout, Command, Stdio};
#[cfg(unix)]
use std::rc::Rc;

#[cfg(unix)]
use support::outln;
#[cfg(unix)]
use windlass::io::AsyncFd;

#[cfg(unix)]
const COUNT: &str = "for i in 1 2 3; do echo \"the child counts: $i\"; sleep 0.2; done";

#[cfg(unix)]
fn main() -> io::Result<()> {
    windlass::run(async {
        let mut child = Command::new("sh").args(["-c", COUNT]).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().expect("stdout is piped");
        let counting = windlass::spawn(print_all(AsyncFd::new(output)?));

        match watch_input() {
            Ok(end) => outln!("{}", end.await.expect("the callback resolves the promise")),
            Err(error) => outln!("{error}\na regular file cannot be watched: try `ls | cargo run --example watch`"),
        }
        counting.await.expect("the task does not panic")?;
        child.wait().map(|_| ())
    })?
}

/// With a callback, as in asyncio: it runs once per turn while there is something to read.
#[cfg(unix)]
fn watch_input() -> io::Result<windlass::Placeholder<String>> {
    // Not std's handle: the kernel does not know about data in std's buffer.
    let input = Rc::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let (promise, end) = windlass::promise();
    windlass::add_reader(&*input.clone(), move || {
        let mut bytes = [0; 256];
        let end = match (&*input).read(&mut bytes) {
            Ok(0) => "standard input has ended".to_string(),
            Ok(count) => return outln!("standard input: {:?}", String::from_utf8_lossy(&bytes[..count])),
            Err(error) => format!("standard input: {error}"),
        };
        windlass::remove_reader(&*input);
        let _ = promise.resolve(end);
    })?;
    Ok(end)
}

/// With await: one read after each `readable` cannot block, because there is no other reader.
#[cfg(unix)]
async fn print_all(mut pipe: AsyncFd<ChildStdout>) -> io::Result<()> {
    loop {
        pipe.readable().await?;
        let mut bytes = [0; 256];
        match pipe.get_mut().read(&mut bytes)? {
            0 => return Ok(()),
            // A closed standard output is not an error here.
            count => drop(io::Write::write_all(&mut io::stdout(), &bytes[..count])),
        }
    }
}

#[cfg(not(unix))]
fn main() {
    eprintln!("this example needs Unix: it watches pipes and the terminal");
}

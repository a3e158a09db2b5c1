//! A minimal epoll server: wait, receive, send; no queue, no timers, no tasks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::epoll::{Epoll, Events, Interest};

/// The read size of the hand-written servers: the size of windlass' pool buffers.
pub(crate) const BUFFER_LEN: usize = 8 * 1024;

struct Connection {
    stream: TcpStream,
    /// Received bytes that did not fit into the kernel's send buffer.
    unsent: Vec<u8>,
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve() -> io::Result<()> {
    const DOOR: u64 = u64::MAX;
    let listener = listen()?;
    // Non-blocking: a peer may be gone before it is accepted, and a blocking accept would then stall all other
    // connections.
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd(), DOOR, Interest::Read)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut events = Events::new();
    loop {
        epoll.wait(&mut events, -1)?;
        for event in events.iter() {
            if event.id == DOOR {
                let Some(stream) = admit(&listener)? else {
                    continue;
                };
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let place = free.pop().unwrap_or(connections.len());
                epoll.add(stream.as_raw_fd(), place as u64, Interest::Read)?;
                if place == connections.len() {
                    connections.push(None);
                }
                let unsent = Vec::new();
                connections[place] = Some(Connection { stream, unsent });
                continue;
            }
            let place = event.id as usize;
            let connection = connections[place].as_mut().expect("only open connections are watched");
            if !connection.serve(&epoll, event.id, &mut buffer).unwrap_or(false) {
                // Closing it also removes it from the epoll set.
                connections[place] = None;
                free.push(place);
            }
        }
    }
}

/// Accepts a connection, unless the peer is already gone.
fn admit(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

impl Connection {
    /// One receive and one send, level-triggered; false when the connection has ended.
    fn serve(&mut self, epoll: &Epoll, id: u64, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            let sent = self.stream.write(&self.unsent)?;
            self.unsent.drain(..sent);
            if self.unsent.is_empty() {
                epoll.modify(self.stream.as_raw_fd(), id, Interest::Read)?;
            }
            return Ok(true);
        }
        let count = self.stream.read(buffer)?;
        if count == 0 {
            return Ok(false);
        }
        let sent = match self.stream.write(&buffer[..count]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if sent < count {
            self.unsent.extend_from_slice(&buffer[sent..count]);
            epoll.modify(self.stream.as_raw_fd(), id, Interest::Write)?;
        }
        Ok(true)
    }
}

/// A listener on an ephemeral port, which is printed.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    print_port(listener.local_addr()?.port())?;
    Ok(listener)
}

/// Prints the port for the parent process.
pub(crate) fn print_port(port: u16) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{port}")?;
    output.flush()
}

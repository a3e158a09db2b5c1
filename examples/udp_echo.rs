//! A UDP echo server and client.
//!
//! ```text
//! cargo run --example udp_echo                        both in one program: a hundred datagrams echoed
//! cargo run --example udp_echo -- serve 127.0.0.1:7777
//! cargo run --example udp_echo -- send 127.0.0.1:7777 "some words"
//! ```
//!
//! `nc -u 127.0.0.1 7777` works as a client too. The server ends on Ctrl-C or SIGTERM, after it has answered the
//! datagram that it has received.

#[path = "support/mod.rs"]
mod support;

use std::io;
use std::time::Duration;

use support::outln;
use windlass::net::UdpSocket;
use windlass::signal::ShutdownSignal;
use windlass::time::timeout;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    windlass::run(async {
        match arguments[..] {
            [] | ["--demo"] => demo().await,
            ["serve", addr] => {
                let socket = UdpSocket::bind(addr).await?;
                let shutdown = windlass::signal::shutdown()?;
                outln!("listening on {}", socket.local_addr()?);
                serve(&socket, shutdown).await;
                Ok(())
            }
            ["send", addr, words] => {
                let socket = client_of(addr).await?;
                outln!("{}", String::from_utf8_lossy(&ask(&socket, words.as_bytes()).await?));
                Ok(())
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "usage: udp_echo [--demo | serve ADDR | send ADDR WORDS]",
            )),
        }
    })?
}

/// Sends every datagram back to its sender, from the receive buffer.
async fn serve(socket: &UdpSocket, mut shutdown: ShutdownSignal) {
    while let Some(received) = shutdown.run_until_shutdown(socket.recv_managed()).await {
        let datagram = match received {
            Ok(datagram) => datagram,
            // One failed receive is no reason to stop; the pause keeps a repeated error from using a whole core.
            Err(error) => {
                eprintln!("receive: {error}");
                windlass::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let from = datagram.from();
        if datagram.is_truncated() {
            outln!(
                "a datagram from {from} was truncated: only {} bytes are sent back",
                datagram.len()
            );
        }
        // One failed answer is no reason to stop.
        if let (Err(error), _) = socket.send_to(datagram.into_bytes(), from).await {
            eprintln!("send to {from}: {error}");
        }
    }
    outln!("stopped");
}

/// A socket connected to one address.
async fn client_of(addr: &str) -> io::Result<UdpSocket> {
    let there = windlass::net::lookup_host(addr).await?;
    let any = if there[0].is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(&there[..]).await?;
    Ok(socket)
}

/// Repeats the request until there is an answer: a datagram or its echo may get lost.
async fn ask(socket: &UdpSocket, question: &[u8]) -> io::Result<Vec<u8>> {
    for _ in 0..5 {
        socket.send(question.to_vec()).await.0?;
        // Dropping a receive loses nothing: the next receive gets a late datagram.
        match timeout(Duration::from_millis(500), socket.recv(Vec::with_capacity(65_536))).await {
            Ok((count, answer)) => return count.map(|_| answer),
            Err(_) => outln!("no answer yet"),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer from the server"))
}

async fn demo() -> io::Result<()> {
    let server = UdpSocket::bind("127.0.0.1:0").await?;
    let addr = server.local_addr()?.to_string();
    let shutdown = windlass::signal::shutdown()?;
    let serving = windlass::spawn(async move { serve(&server, shutdown).await });
    let client = client_of(&addr).await?;
    for number in 0..100 {
        let question = format!("datagram {number}");
        let answer = ask(&client, question.as_bytes()).await?;
        assert_eq!(answer, question.as_bytes());
    }
    serving.cancel();
    outln!("100 datagrams echoed");
    Ok(())
}

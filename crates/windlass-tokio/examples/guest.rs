//! A windlass server that stores lines with sqlx: `cargo run --example guest`.
//!
//! The windlass loop and tokio's runtime share one thread. The server's sockets are windlass's, the database pool uses tokio's
//! runtime, and both are used in the same task. A client of the program sends a few lines and ends it.

use std::error::Error;

use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Row, SqlitePool};
use windlass::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn Error>> {
    windlass_tokio::run(async {
        // One connection: a database in memory belongs to its connection.
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await?;
        sqlx::query("CREATE TABLE lines (line TEXT NOT NULL)")
            .execute(&pool)
            .await?;

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let client = windlass::spawn(send(listener.local_addr()?));
        let (stream, _) = listener.accept().await?;
        store(stream, &pool).await?;
        client.await??;

        let count = sqlx::query("SELECT count(*) AS count FROM lines")
            .fetch_one(&pool)
            .await?;
        println!("{} lines stored", count.get::<i64, _>("count"));
        pool.close().await;
        Ok(())
    })?
}

/// Stores the lines of a connection.
async fn store(stream: TcpStream, pool: &SqlitePool) -> Result<(), Box<dyn Error>> {
    let mut received = Vec::new();
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        received.extend_from_slice(&bytes);
        while let Some(end) = received.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = received.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            sqlx::query("INSERT INTO lines VALUES (?)")
                .bind(line)
                .execute(pool)
                .await?;
        }
    }
}

async fn send(addr: std::net::SocketAddr) -> std::io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    for line in ["north\n", "east\n", "south\n"] {
        stream.write_all(line).await.0?;
        // tokio's timer, in a windlass task.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Ok(())
}

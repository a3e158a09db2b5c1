use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use send_wrapper::SendWrapper;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass::compat::Bridge;
use windlass::net::TcpStream;
use windlass::time::timeout;

/// redis wants a stream that is `Send`. This one is, and panics if another thread uses it.
struct Local(SendWrapper<Bridge<TcpStream>>);

impl AsyncRead for Local {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Local {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut *self.0), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut *self.0), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut *self.0), cx)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).ok_or("usage: redis 127.0.0.1:6379")?;
    windlass::run(async {
        let stream = Local(SendWrapper::new(Bridge::new(TcpStream::connect(addr).await?)));
        // redis' own timeouts need tokio's timer. Use windlass's, as below.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(&Default::default(), stream, config).await?;
        let driver = windlass::spawn(driver);

        let set = redis::cmd("SET").arg("answer").arg(42).to_owned();
        timeout(Duration::from_secs(60), set.exec_async(&mut connection)).await??;
        // Clones share the connection, and their requests are in flight at the same time.
        let mut other = connection.clone();
        let (increment, get) = (redis::Cmd::incr("answer", 1), redis::Cmd::get("answer"));
        let both = windlass::task::try_join((
            increment.query_async::<i32>(&mut connection),
            get.query_async::<i32>(&mut other),
        ));
        assert_eq!(both.await?, (43, 43));

        drop((connection, other));
        driver.await?;
        Ok(())
    })?
}

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use windlass::compat::Bridge;
use windlass::net::TcpStream;
use windlass::time::timeout;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).ok_or("usage: redis 127.0.0.1:6379")?;
    windlass::run(async {
        // redis requires a stream that is `Send`. This one panics if another thread uses it.
        let stream = Bridge::new(TcpStream::connect(addr).await?).into_send();
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

use tokio_postgres::{Config, NoTls};
use windlass::compat::Bridge;
use windlass::net::UnixStream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args()
        .nth(1)
        .ok_or("usage: postgres /run/postgresql/.s.PGSQL.5432")?;
    windlass::run(async {
        // A `TcpStream` works, too; for TLS, a `windlass::tls::TlsStream` whose server expects TLS from the first byte.
        let stream = Bridge::new(UnixStream::connect(socket).await?);
        let mut config = Config::new();
        config.user("postgres").dbname("postgres");
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        // Sends the requests and receives the replies, until the client is dropped.
        let connection = windlass::spawn(connection);

        let row = client.query_one("SELECT $1::int4 + 1", &[&41]).await?;
        assert_eq!(row.get::<_, i32>(0), 42);
        // Requests in flight at the same time share the connection.
        let both = windlass::task::try_join((
            client.query_one("SELECT 'first'", &[]),
            client.query_one("SELECT 'second'", &[]),
        ));
        assert_eq!(both.await?.1.get::<_, &str>(0), "second");

        drop(client);
        connection.await??;
        Ok(())
    })?
}

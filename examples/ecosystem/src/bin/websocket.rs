use async_tungstenite::tungstenite::Message;
use async_tungstenite::{accept_async, client_async};
use futures_util::StreamExt;
use windlass::compat::Bridge;
use windlass::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    windlass::run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let client = Bridge::new(TcpStream::connect(listener.local_addr()?).await?);
        let server = Bridge::new(listener.accept().await?.0);
        let both = windlass::task::try_join((accept_async(server), client_async("ws://localhost/", client)));
        let (mut server, (mut client, _response)) = both.await?;
        client.send(Message::text("hello")).await?;
        assert_eq!(server.next().await.ok_or("closed")??, Message::text("hello"));
        client.close(None).await?;
        assert!(server.next().await.ok_or("closed")??.is_close());
        Ok(())
    })?
}

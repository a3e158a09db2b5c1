//! A client that knows only bytes.

use std::time::Duration;

use windlass::net::TcpStream;
use windlass::time::timeout;

pub(crate) async fn say(stream: &TcpStream, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref().to_vec()).await.0.expect("write");
}

/// Everything up to the end of the connection, however that comes.
pub(crate) async fn hear_all(stream: &TcpStream) -> String {
    let mut all = Vec::new();
    let hearing = async {
        while let Ok(bytes) = stream.read_managed().await {
            if bytes.is_empty() {
                break;
            }
            all.extend_from_slice(&bytes);
        }
    };
    let heard = timeout(Duration::from_secs(60), hearing).await;
    heard.expect("the server closes");
    String::from_utf8_lossy(&all).into_owned()
}

/// Up to the last of these words.
pub(crate) async fn hear_until(stream: &TcpStream, last: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(last) {
        let bytes = timeout(Duration::from_secs(60), stream.read_managed()).await;
        let bytes = bytes.expect("it is said").expect("read");
        assert!(!bytes.is_empty(), "it ended after {:?}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&bytes);
    }
    String::from_utf8_lossy(&all).into_owned()
}

//! A client that sends and receives raw bytes.

use std::time::Duration;

use windlass::net::TcpStream;
use windlass::time::timeout;

pub(crate) async fn send(stream: &TcpStream, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref().to_vec()).await.0.expect("write");
}

/// Reads until the connection ends, cleanly or not.
pub(crate) async fn read_all(stream: &TcpStream) -> String {
    let mut all = Vec::new();
    let reading = async {
        while let Ok(bytes) = stream.read_managed().await {
            if bytes.is_empty() {
                break;
            }
            all.extend_from_slice(&bytes);
        }
    };
    let result = timeout(Duration::from_secs(60), reading).await;
    result.expect("the server closes");
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads until `last` has arrived.
pub(crate) async fn read_until(stream: &TcpStream, last: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(last) {
        let bytes = timeout(Duration::from_secs(60), stream.read_managed()).await;
        let bytes = bytes.expect("bytes in time").expect("read");
        assert!(
            !bytes.is_empty(),
            "the connection ended after {:?}",
            String::from_utf8_lossy(&all)
        );
        all.extend_from_slice(&bytes);
    }
    String::from_utf8_lossy(&all).into_owned()
}

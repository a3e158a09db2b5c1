//! A directory of files.

use std::path::PathBuf;

use axum::Router;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use windlass_web::files::Dir;

use crate::support::{body, clients, get, on_each_driver, start};

/// A directory that is removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> TempDir {
        let name = format!(
            "windlass-web-files-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("sub")).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn whole_ranges_and_conditions() {
    let dir = TempDir::new();
    let content: Bytes = (0..1_000_003_u32).map(|i| (i % 253) as u8).collect::<Vec<_>>().into();
    std::fs::write(dir.0.join("large.bin"), &content).unwrap();
    std::fs::write(dir.0.join("empty.txt"), "").unwrap();
    std::fs::write(dir.0.join("sub/index.html"), "<p>index").unwrap();
    on_each_driver(async || {
        let server = start(Router::new().nest_service("/static", Dir::new(&dir.0))).await;
        let uri = |path: &str| server.uri(&format!("/static{path}"));
        for client in clients() {
            let response = client.request(get(&uri("/large.bin"))).await.unwrap();
            assert_eq!(response.headers()["content-type"], "application/octet-stream");
            assert_eq!(response.headers()["accept-ranges"], "bytes");
            let modified = response.headers()["last-modified"].clone();
            assert!(body(response).await == content);

            for (range, part, header) in [
                ("bytes=0-0", 0..1, "bytes 0-0/1000003"),
                ("bytes=1000-300000", 1000..300_001, "bytes 1000-300000/1000003"),
                ("bytes=-3", 1_000_000..1_000_003, "bytes 1000000-1000002/1000003"),
            ] {
                let request = Request::get(uri("/large.bin"))
                    .header("range", range)
                    .body(Full::default())
                    .unwrap();
                let response = client.request(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
                assert_eq!(response.headers()["content-range"], header);
                assert_eq!(response.headers()["content-length"], part.len().to_string());
                assert!(body(response).await == content[part]);
            }
            let with = |name: &'static str, value: &str, range: &'static str| {
                let request = Request::get(uri("/large.bin"))
                    .header(name, value)
                    .header("range", range);
                client.request(request.body(Full::default()).unwrap())
            };
            let response = with("range-unit", "", "bytes=1000003-").await.unwrap();
            assert_eq!(response.status(), StatusCode::RANGE_NOT_SATISFIABLE);
            assert_eq!(response.headers()["content-range"], "bytes */1000003");
            let modified = modified.to_str().unwrap();
            let status = with("if-range", modified, "bytes=0-1").await.unwrap().status();
            assert_eq!(status, StatusCode::PARTIAL_CONTENT);
            let status = with("if-range", "Sun, 06 Nov 1994 08:49:37 GMT", "bytes=0-1")
                .await
                .unwrap()
                .status();
            assert_eq!(status, StatusCode::OK);
            let status = with("if-modified-since", modified, "bytes=0-1").await.unwrap().status();
            assert_eq!(status, StatusCode::NOT_MODIFIED);

            let request = |method: Method, path: &str| {
                client.request(
                    Request::builder()
                        .method(method)
                        .uri(uri(path))
                        .body(Full::default())
                        .unwrap(),
                )
            };
            let response = request(Method::HEAD, "/large.bin").await.unwrap();
            assert_eq!(response.headers()["content-length"], "1000003");
            assert!(body(response).await.is_empty());
            let response = request(Method::POST, "/large.bin").await.unwrap();
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(response.headers()["allow"], "GET, HEAD");

            let response = client.request(get(&uri("/sub/"))).await.unwrap();
            assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
            assert_eq!(body(response).await, "<p>index");
            assert_eq!(body(client.request(get(&uri("/empty.txt"))).await.unwrap()).await, "");
            for missing in [
                "/nothing",
                "/large.bin/more",
                "/",
                "/%2e%2e/Cargo.toml",
                "/..%2f..%2fetc/passwd",
            ] {
                let status = client.request(get(&uri(missing))).await.unwrap().status();
                assert_eq!(status, StatusCode::NOT_FOUND, "{missing}");
            }
        }
        server.end().await;
    });
}

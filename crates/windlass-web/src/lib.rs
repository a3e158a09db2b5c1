//! axum and tonic on windlass: servers, clients, TLS, graceful shutdown.

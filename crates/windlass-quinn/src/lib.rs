//! QUIC and HTTP/3 on windlass: quinn's runtime.

//! Socket addresses and name lookup.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::blocking::off_loop;
use crate::sys::context;

/// Socket addresses, or a name that resolves to them: `"127.0.0.1:80"`, `("::1", 80)`, `"localhost:80"`, a
/// `SocketAddr`.
///
/// Literal addresses need no lookup. The system's resolver looks up names on a pool thread, without blocking the loop.
///
/// ```
/// use windlass::net::{ToSocketAddrs, lookup_host};
/// async fn first(name: impl ToSocketAddrs) -> std::io::Result<std::net::SocketAddr> {
///     Ok(lookup_host(name).await?[0])
/// }
/// windlass::run(async {
///     assert_eq!(first("127.0.0.1:80").await?, first(("127.0.0.1", 80)).await?);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ToSocketAddrs: sealed::Sealed {
    #[doc(hidden)]
    fn resolve(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>>;

    /// The first address, if no lookup is needed.
    #[doc(hidden)]
    fn literal_addr(&self) -> Option<SocketAddr> {
        None
    }

    #[doc(hidden)]
    fn shown(&self) -> String;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for SocketAddr {}

impl ToSocketAddrs for SocketAddr {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![*self])
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        Some(*self)
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl sealed::Sealed for &[SocketAddr] {}

impl ToSocketAddrs for &[SocketAddr] {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.to_vec())
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        self.first().copied()
    }
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

/// Implements the trait for types that convert to a `SocketAddr`.
macro_rules! impl_to_socket_addrs {
    ($($kind:ty),*) => {$(
        impl sealed::Sealed for $kind {}

        impl ToSocketAddrs for $kind {
            async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
            fn literal_addr(&self) -> Option<SocketAddr> {
                Some(SocketAddr::from(*self))
            }
            fn shown(&self) -> String {
                SocketAddr::from(*self).to_string()
            }
        }
    )*};
}

impl_to_socket_addrs!(
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl sealed::Sealed for (&str, u16) {}

impl ToSocketAddrs for (&str, u16) {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = *self;
        match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
            Err(_) => look_up((host.to_owned(), port)).await,
        }
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        let ip = self.0.parse().ok()?;
        Some(SocketAddr::new(ip, self.1))
    }
    fn shown(&self) -> String {
        format!("{}:{}", self.0, self.1)
    }
}

impl sealed::Sealed for (String, u16) {}

impl ToSocketAddrs for (String, u16) {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        (self.0.as_str(), self.1).resolve().await
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        (self.0.as_str(), self.1).literal_addr()
    }
    fn shown(&self) -> String {
        (self.0.as_str(), self.1).shown()
    }
}

impl sealed::Sealed for str {}

impl ToSocketAddrs for str {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(addr) = self.parse::<SocketAddr>() {
            return Ok(vec![addr]);
        }
        let has_port = self
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !has_port {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an address needs a port, as in \"127.0.0.1:80\" or \"localhost:80\"",
            ));
        }
        look_up(self.to_owned()).await
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        self.parse().ok()
    }
    fn shown(&self) -> String {
        self.to_owned()
    }
}

impl sealed::Sealed for String {}

impl ToSocketAddrs for String {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        self.as_str().resolve().await
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        self.as_str().literal_addr()
    }
    fn shown(&self) -> String {
        self.clone()
    }
}

impl<T: ToSocketAddrs + ?Sized> sealed::Sealed for &T {}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        (**self).resolve().await
    }
    fn literal_addr(&self) -> Option<SocketAddr> {
        (**self).literal_addr()
    }
    fn shown(&self) -> String {
        (**self).shown()
    }
}

/// `getaddrinfo` blocks, so it runs on the thread pool.
async fn look_up(name: impl std::net::ToSocketAddrs + Send + 'static) -> io::Result<Vec<SocketAddr>> {
    off_loop(move || Ok(name.to_socket_addrs()?.collect())).await
}

/// Looks up a name and returns all of its addresses in the resolver's order.
///
/// The lookup runs on a pool thread without blocking the loop. Dropping the future abandons it.
///
/// ```
/// windlass::run(async {
///     let addrs = windlass::net::lookup_host("localhost:80").await?;
///     assert!(addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 80));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "getaddrinfo")]
pub async fn lookup_host(name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let explain = |error| context(format_args!("look up {}", name.shown()), error);
    name.resolve().await.map_err(explain)
}

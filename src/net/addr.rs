//! Socket addresses and name lookup.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::driver::op::Op;
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{LookUp, LookUpResult, context};

/// Socket addresses, or a name that resolves to them: `"127.0.0.1:80"`, `("::1", 80)`, `"localhost:80"`, a
/// `SocketAddr`.
///
/// Literal addresses need no lookup. The system's resolver looks up names on a pool thread, without blocking the loop.
///
/// ```
/// use windlass::net::{ToSocketAddrs, lookup_host};
/// async fn first(name: impl ToSocketAddrs) -> std::io::Result<std::net::SocketAddr> {
///     let found = lookup_host(name).await?;
///     found.first().copied().ok_or_else(|| std::io::ErrorKind::NotFound.into())
/// }
/// windlass::run(async {
///     assert_eq!(first("127.0.0.1:80").await?, first(("127.0.0.1", 80)).await?);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ToSocketAddrs: sealed::Sealed {
    /// The address, if there is only one and no lookup is needed.
    #[doc(hidden)]
    fn literal_addr(&self) -> Option<SocketAddr>;

    #[doc(hidden)]
    fn resolve(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        async { Ok(self.literal_addr().into_iter().collect()) }
    }

    /// The address or name for error messages.
    #[doc(hidden)]
    fn describe(&self) -> String {
        self.literal_addr().map(|addr| addr.to_string()).unwrap_or_default()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Implements the trait for types that convert to a `SocketAddr`.
macro_rules! impl_to_socket_addrs {
    ($($kind:ty),*) => {$(
        impl sealed::Sealed for $kind {}

        impl ToSocketAddrs for $kind {
            fn literal_addr(&self) -> Option<SocketAddr> {
                Some(SocketAddr::from(*self))
            }
        }
    )*};
}

impl_to_socket_addrs!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl sealed::Sealed for &[SocketAddr] {}

impl ToSocketAddrs for &[SocketAddr] {
    fn literal_addr(&self) -> Option<SocketAddr> {
        match self {
            [addr] => Some(*addr),
            _ => None,
        }
    }
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.to_vec())
    }
    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

impl sealed::Sealed for (&str, u16) {}

impl ToSocketAddrs for (&str, u16) {
    fn literal_addr(&self) -> Option<SocketAddr> {
        let ip = self.0.parse().ok()?;
        Some(SocketAddr::new(ip, self.1))
    }
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self.literal_addr() {
            Some(addr) => Ok(vec![addr]),
            None => look_up(self.0, self.1).await,
        }
    }
    fn describe(&self) -> String {
        format!("{}:{}", self.0, self.1)
    }
}

impl sealed::Sealed for (String, u16) {}

impl ToSocketAddrs for (String, u16) {
    fn literal_addr(&self) -> Option<SocketAddr> {
        (self.0.as_str(), self.1).literal_addr()
    }
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        (self.0.as_str(), self.1).resolve().await
    }
    fn describe(&self) -> String {
        (self.0.as_str(), self.1).describe()
    }
}

impl sealed::Sealed for str {}

impl ToSocketAddrs for str {
    fn literal_addr(&self) -> Option<SocketAddr> {
        self.parse().ok()
    }
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some(addr) = self.literal_addr() {
            return Ok(vec![addr]);
        }
        let parts = self.rsplit_once(':');
        let Some((host, port)) = parts.and_then(|(host, port)| Some((host, port.parse().ok()?))) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an address needs a port, as in \"127.0.0.1:80\" or \"localhost:80\"",
            ));
        };
        look_up(host, port).await
    }
    fn describe(&self) -> String {
        self.to_owned()
    }
}

/// Implements the trait for types that dereference to one that has it.
macro_rules! impl_by_deref {
    ($([$($generics:tt)*] $kind:ty),*) => {$(
        impl<$($generics)*> sealed::Sealed for $kind {}

        impl<$($generics)*> ToSocketAddrs for $kind {
            fn literal_addr(&self) -> Option<SocketAddr> {
                (**self).literal_addr()
            }
            fn resolve(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
                (**self).resolve()
            }
            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )*};
}

impl_by_deref!([] String, [T: ToSocketAddrs + ?Sized] &T);

/// Resolves a name to at least one address. `action` and the name are the context of an error.
pub(crate) async fn resolve(action: &str, name: &impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let resolved = match name.resolve().await {
        Ok(addrs) if addrs.is_empty() => Err(io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")),
        resolved => resolved,
    };
    resolved.map_err(|error| context(format_args!("{action} {}", name.describe()), error))
}

/// Calls `attempt` with the addresses of a name until it succeeds for one; otherwise returns its last error.
pub(crate) async fn try_each<T>(
    action: &str,
    name: &impl ToSocketAddrs,
    mut attempt: impl AsyncFnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut result = Err(io::ErrorKind::InvalidInput.into());
    for addr in resolve(action, name).await? {
        result = attempt(addr).await;
        if result.is_ok() {
            break;
        }
    }
    result.map_err(|error| context(format_args!("{action} {}", name.describe()), error))
}

async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let core = LoopCore::current("a name lookup").rc();
    let query = LookUp {
        host: host.to_owned(),
        port,
    };
    let payload: (LookUp, LookUpResult) = (query, Ok(Vec::new()));
    let queue = IoQueue::default();
    let plan = |(query, out): &mut (LookUp, LookUpResult)| Op::LookUp { query, out };
    let (result, (_, found)) = OpFuture::start_op(&core, &queue, OnOrphan::Discard, payload, plan).await;
    result.res().map_err(from_code)?;
    found
}

/// Looks up a name and returns all of its addresses in the resolver's order.
///
/// The lookup runs on a pool thread without blocking the loop. Dropping the future discards its result.
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
    let explain = |error| context(format_args!("look up {}", name.describe()), error);
    name.resolve().await.map_err(explain)
}

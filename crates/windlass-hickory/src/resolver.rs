//! hickory's resolver for the current loop, and TCP connections to names.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;

use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use windlass::net::{TcpBuilder, TcpStream};

use crate::provider::Provider;

/// A DNS resolver: hickory's, on the current loop, with [`connect`](Resolver::connect). It dereferences to hickory's
/// [`Resolver`](hickory_resolver::Resolver), which has the lookups of all kinds of records.
///
/// Cheap to clone; clones share the cache and the connections to the name servers. It is `Send`: other loops can use clones.
///
/// **Cancel safety:** a dropped lookup closes its socket, or ignores the answer to its query over TCP.
///
/// ```no_run
/// use windlass_hickory::Resolver;
///
/// windlass::run(async {
///     let resolver = Resolver::from_system()?;
///     let addrs = resolver.lookup("example.com", 443).await?;
///     println!("{addrs:?}");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Resolver(hickory_resolver::Resolver<Provider>);

impl Resolver {
    /// A resolver with the system's configuration: `/etc/resolv.conf` on Unix, the registry on Windows. Reads it at once,
    /// and the hosts file, so it blocks the loop shortly.
    #[cfg(all(feature = "system-config", any(unix, windows)))]
    pub fn from_system() -> io::Result<Resolver> {
        hickory_resolver::Resolver::builder(Provider)
            .and_then(|builder| builder.build())
            .map(Resolver)
            .map_err(to_io_error)
    }

    /// A resolver that asks these name servers. For more options, build
    /// [hickory's](hickory_resolver::Resolver::builder_with_config) with [`Provider`], and convert it with `From`.
    ///
    /// ```
    /// use windlass_hickory::{Resolver, hickory_resolver::config::NameServerConfig};
    ///
    /// windlass::run(async {
    ///     let resolver = Resolver::with_name_servers([NameServerConfig::udp_and_tcp([127, 0, 0, 53].into())])?;
    ///     // A literal address needs no name server.
    ///     assert_eq!(resolver.lookup("127.0.0.1", 80).await?, ["127.0.0.1:80".parse().unwrap()]);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_name_servers(servers: impl IntoIterator<Item = NameServerConfig>) -> io::Result<Resolver> {
        let config = ResolverConfig::from_name_servers(servers.into_iter().collect());
        let built = hickory_resolver::Resolver::builder_with_config(config, Provider).build();
        built.map(Resolver).map_err(to_io_error)
    }

    /// The addresses of a host, each with `port`: the counterpart of [`windlass::net::lookup_host`]. At least one; a name
    /// that does not exist or has no address is an error of the kind `NotFound`.
    pub async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let explain = |error: io::Error| io::Error::new(error.kind(), format!("look up {host}: {error}"));
        let found = self
            .0
            .lookup_ip(host)
            .await
            .map_err(|error| explain(to_io_error(error)))?;
        let addrs: Vec<_> = found.iter().map(|ip| SocketAddr::new(ip, port)).collect();
        match addrs.is_empty() {
            true => Err(explain(io::Error::new(io::ErrorKind::NotFound, "it has no address"))),
            false => Ok(addrs),
        }
    }

    /// Looks up a host and connects to the first of its addresses that answers: Happy Eyeballs, as
    /// [`TcpStream::connect`].
    ///
    /// ```
    /// use windlass::net::TcpListener;
    /// use windlass_hickory::{Resolver, hickory_resolver::config::NameServerConfig};
    ///
    /// windlass::run(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let resolver = Resolver::with_name_servers([NameServerConfig::udp_and_tcp([127, 0, 0, 53].into())])?;
    ///     let stream = resolver.connect("127.0.0.1", listener.local_addr()?.port()).await?;
    ///     assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        self.connect_with(TcpStream::builder(), host, port).await
    }

    /// As [`connect`](Resolver::connect), with socket options.
    pub async fn connect_with(&self, builder: TcpBuilder, host: &str, port: u16) -> io::Result<TcpStream> {
        let addrs = self.lookup(host, port).await?;
        let connected = builder.connect(&addrs[..]).await;
        connected.map_err(|error| io::Error::new(error.kind(), format!("connect to {host}: {error}")))
    }
}

/// Keeps the kind of an I/O error, and says `NotFound` and `TimedOut` for hickory's own.
fn to_io_error(error: NetError) -> io::Error {
    let kind = match &error {
        NetError::Io(error) => error.kind(),
        NetError::Timeout => io::ErrorKind::TimedOut,
        error if error.is_nx_domain() || error.is_no_records_found() => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl Deref for Resolver {
    type Target = hickory_resolver::Resolver<Provider>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<hickory_resolver::Resolver<Provider>> for Resolver {
    fn from(resolver: hickory_resolver::Resolver<Provider>) -> Resolver {
        Resolver(resolver)
    }
}

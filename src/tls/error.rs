//! What went wrong, and what to do about it.

use std::fmt;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Why TLS gave up, in the `io::Error` that says so. Its kind is `InvalidData`.
///
/// ```
/// use windlass::tls::TlsError;
/// use windlass::tls::rustls::{CertificateError, Error};
///
/// fn is_expired(error: &std::io::Error) -> bool {
///     let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
///     matches!(
///         tls.map(TlsError::rustls_error),
///         Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }))
///     )
/// }
/// # assert!(!is_expired(&std::io::ErrorKind::UnexpectedEof.into()));
/// ```
#[derive(Clone, Debug)]
pub struct TlsError(Error);

impl TlsError {
    /// What rustls says.
    pub fn rustls_error(&self) -> &Error {
        &self.0
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Error::InvalidCertificate(error) => certificate(error, f),
            Error::AlertReceived(alert) => refused(*alert, f),
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => f.write_str(
                "what the peer sent is not TLS: it speaks another protocol, plain HTTP perhaps, or something in between does",
            ),
            Error::NoCertificatesPresented => {
                f.write_str("the peer has shown no certificate, and one is asked for: configure it to have one")
            }
            Error::DecryptError => f.write_str("what was received is not what the peer has sent: it was changed on the way"),
            Error::PeerIncompatible(_) => {
                write!(f, "{}: enable what both ends can do in their configurations", self.0)
            }
            error => error.fmt(f),
        }
    }
}

/// What is wrong with the peer's certificate.
fn certificate(error: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const CLOCK: &str = "have it renewed, or set this machine's clock";
    match error {
        CertificateError::UnknownIssuer => f.write_str(
            "the peer's certificate is signed by nobody who is trusted here: add the authority's certificate to the root store \
             of the configuration, or have the peer send the certificates in between",
        ),
        CertificateError::Expired => write!(f, "the peer's certificate has expired: {CLOCK}"),
        CertificateError::ExpiredContext { time, not_after } => {
            let since = Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs()));
            write!(f, "the peer's certificate has expired {}: {CLOCK}", ago(since))
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            f.write_str("the peer's certificate is not valid yet: set this machine's clock, or wait")
        }
        CertificateError::NotValidForName => f.write_str(
            "the peer's certificate is not for the name that was asked for: connect with a name that it has, or have one issued \
             for this name",
        ),
        CertificateError::NotValidForNameContext { expected, presented } => write!(
            f,
            "the peer's certificate is not for {:?} but for {}: connect with a name that it has, or have one issued for this name",
            expected.to_str(),
            match presented.is_empty() {
                true => "no name at all".to_owned(),
                false => presented.join(", "),
            },
        ),
        CertificateError::BadSignature => f.write_str(
            "the peer's certificate is not signed by the authority that it names: the one that is trusted here has that name \
             and another key, or somebody has forged it",
        ),
        CertificateError::Revoked => f.write_str("the peer's certificate was revoked: have a new one issued"),
        error => write!(f, "the peer's certificate is refused: {error}"),
    }
}

fn ago(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} seconds ago"),
        seconds @ 120..7_200 => format!("{} minutes ago", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} hours ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Why the peer gave up.
fn refused(alert: AlertDescription, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let why = match alert {
        AlertDescription::UnknownCA => "it does not trust who signed our certificate",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => "it does not accept our certificate",
        AlertDescription::CertificateExpired => "our certificate has expired, or its clock is wrong",
        AlertDescription::CertificateRevoked => "our certificate was revoked",
        AlertDescription::CertificateRequired => "it wants a certificate of us: configure one",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "it has no cipher suite or key exchange in common with us"
        }
        AlertDescription::ProtocolVersion => "it has no version of TLS in common with us",
        AlertDescription::NoApplicationProtocol => {
            "it speaks none of the application protocols that were offered (ALPN)"
        }
        AlertDescription::UnrecognisedName => "it does not serve the name that was asked for",
        AlertDescription::UserCanceled => "it was told to stop",
        other => return write!(f, "the peer gave up with the alert {other:?}"),
    };
    write!(f, "the peer gave up with the alert {alert:?}: {why}")
}

pub(super) fn told(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsError(error))
}

/// The stream below has ended, and nobody said that it would.
pub(super) fn cut_off() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended without TLS's close_notify: what was received may have been cut off",
    )
}

/// The same within the handshake.
pub(super) fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer closed the connection within the TLS handshake",
    )
}

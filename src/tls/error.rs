//! TLS errors, with advice on how to fix them.

use std::fmt;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// The TLS failure inside an `io::Error` of kind `InvalidData`.
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
    /// The underlying rustls error.
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
            Error::InvalidCertificate(error) => describe_certificate_error(error, f),
            Error::AlertReceived(alert) => describe_alert(*alert, f),
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => f.write_str(
                "the received data is not TLS: the peer or a proxy speaks another protocol, perhaps plain HTTP",
            ),
            Error::NoCertificatesPresented => {
                f.write_str("the peer presented no certificate, but one is required: configure one at the peer")
            }
            Error::DecryptError => f.write_str("decryption failed: the data was modified in transit"),
            Error::PeerIncompatible(_) => {
                write!(f, "{}: the two configurations share no common option", self.0)
            }
            error => error.fmt(f),
        }
    }
}

fn describe_certificate_error(error: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const CLOCK: &str = "renew it, or correct this machine's clock";
    match error {
        CertificateError::UnknownIssuer => f.write_str(
            "the peer's certificate is not signed by a trusted authority: add the authority's certificate to the \
             root store, or have the peer send the intermediate certificates",
        ),
        CertificateError::Expired => write!(f, "the peer's certificate has expired: {CLOCK}"),
        CertificateError::ExpiredContext { time, not_after } => {
            let since = Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs()));
            write!(f, "the peer's certificate expired {}: {CLOCK}", ago(since))
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            f.write_str("the peer's certificate is not valid yet: correct this machine's clock, or wait")
        }
        CertificateError::NotValidForName => f.write_str(
            "the peer's certificate is not valid for the requested name: connect by a name in it, or issue a new one",
        ),
        CertificateError::NotValidForNameContext { expected, presented } => write!(
            f,
            "the peer's certificate is not valid for {:?} but for {}: connect by a name in it, or issue a new one",
            expected.to_str(),
            match presented.is_empty() {
                true => "no name at all".to_owned(),
                false => presented.join(", "),
            },
        ),
        CertificateError::BadSignature => f.write_str(
            "the peer's certificate has a wrong signature: the trusted authority of that name has another key, or the \
             certificate is forged",
        ),
        CertificateError::Revoked => f.write_str("the peer's certificate was revoked: issue a new one"),
        error => write!(f, "the peer's certificate was rejected: {error}"),
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

fn describe_alert(alert: AlertDescription, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let why = match alert {
        AlertDescription::UnknownCA => "it does not trust the authority that signed our certificate",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => "it does not accept our certificate",
        AlertDescription::CertificateExpired => "our certificate has expired, or its clock is wrong",
        AlertDescription::CertificateRevoked => "our certificate was revoked",
        AlertDescription::CertificateRequired => "it requires a client certificate: configure one",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "it has no cipher suite or key exchange in common with us"
        }
        AlertDescription::ProtocolVersion => "it has no TLS version in common with us",
        AlertDescription::NoApplicationProtocol => "it supports none of the offered application protocols (ALPN)",
        AlertDescription::UnrecognisedName => "it does not serve the requested name",
        AlertDescription::UserCanceled => "its user cancelled the handshake",
        other => return write!(f, "the peer sent the fatal alert {other:?}"),
    };
    write!(f, "the peer sent the fatal alert {alert:?}: {why}")
}

pub(super) fn tls_error(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsError(error))
}

/// The transport ended without close_notify.
pub(super) fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended without a TLS close_notify: the received data may be truncated",
    )
}

pub(super) fn eof_in_handshake() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer closed the connection during the TLS handshake",
    )
}

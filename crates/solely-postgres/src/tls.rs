//! TLS, by `sslmode` and `sslrootcert` of the URL, as PostgreSQL's own clients read them.
//!
//! | `sslmode` | encrypted | the server's certificate |
//! |---|---|---|
//! | `disable` | never | |
//! | `allow`, `prefer` (the default) | if the server can | is not looked at |
//! | `require` | always | is not looked at, unless `sslrootcert` is given: then as `verify-ca` |
//! | `verify-ca` | always | must be signed by an authority that is trusted |
//! | `verify-full` | always | must also be for the host of the URL |
//!
//! Trusted are the authorities of `sslrootcert`, a PEM file, or else those of the system.

use std::sync::Arc;

use deadpool_postgres::{Manager, ManagerConfig};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use solely_core::StoreError;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Tls {
    Never,
    With(MakeRustlsConnect),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verify {
    Nothing,
    Authority,
    AuthorityAndHost,
}

impl Tls {
    /// Reads a URL: what to connect to, and how.
    pub(crate) fn read(url: &str) -> Result<(Config, Self), StoreError> {
        let unusable = |why: String| StoreError::Unusable(format!("the store's URL cannot be used: {why}"));
        let (url, mode, root) = apart(url);
        let mut config: Config =
            url.parse().map_err(|error: tokio_postgres::Error| unusable(error.to_string()))?;
        let (mode, verify) = match mode.as_deref() {
            Some("disable") => (SslMode::Disable, Verify::Nothing),
            None | Some("allow" | "prefer") => (SslMode::Prefer, Verify::Nothing),
            Some("require") if root.is_some() => (SslMode::Require, Verify::Authority),
            Some("require") => (SslMode::Require, Verify::Nothing),
            Some("verify-ca") => (SslMode::Require, Verify::Authority),
            Some("verify-full") => (SslMode::Require, Verify::AuthorityAndHost),
            Some(other) => {
                return Err(unusable(format!(
                    "sslmode is disable, allow, prefer, require, verify-ca or verify-full, not {other:?}"
                )));
            }
        };
        config.ssl_mode(mode);
        if mode == SslMode::Disable {
            return Ok((config, Self::Never));
        }
        let client = client_config(verify, root.as_deref()).map_err(unusable)?;
        Ok((config, Self::With(MakeRustlsConnect::new(client))))
    }

    pub(crate) fn manager(&self, config: Config, how: ManagerConfig) -> Manager {
        match self {
            Self::Never => Manager::from_config(config, NoTls, how),
            Self::With(tls) => Manager::from_config(config, tls.clone(), how),
        }
    }
}

/// Takes `sslmode` and `sslrootcert` out of a URL: the driver does not know all their values.
fn apart(url: &str) -> (String, Option<String>, Option<String>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), None, None) };
    let (mut mode, mut root) = (None, None);
    let mut rest = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "sslmode" => mode = Some(value.into_owned()),
            "sslrootcert" => root = Some(value.into_owned()),
            _ => {
                rest.append_pair(&name, &value);
            }
        }
    }
    // The driver decodes %20 but not +.
    let rest = rest.finish().replace('+', "%20");
    let url = if rest.is_empty() { place.to_owned() } else { format!("{place}?{rest}") };
    (url, mode, root)
}

fn client_config(verify: Verify, root: Option<&str>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if verify == Verify::Nothing {
        Arc::new(Unverified(provider.clone()))
    } else {
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(root)?), provider.clone())
            .build()
            .map_err(|error| error.to_string())?;
        Arc::new(Verified { webpki, host_too: verify == Verify::AuthorityAndHost })
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn roots(file: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) if file != "system" => {
            let unreadable = |error: String| format!("sslrootcert {file}: {error}");
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(
            "there is no authority to verify the server's certificate with; give sslrootcert".to_owned()
        );
    }
    Ok(roots)
}

/// Encrypts, and takes any certificate whose key the server shows to have.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies who signed the certificate, and if asked for which host it is.
#[derive(Debug)]
struct Verified {
    webpki: Arc<WebPkiServerVerifier>,
    host_too: bool,
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        match self.webpki.verify_server_cert(certificate, between, host, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if !self.host_too =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_taken_out_of_the_url() {
        let (url, mode, root) =
            apart("postgres://u@h/d?application_name=a%20b&sslmode=verify-full&sslrootcert=%2Fca.pem");
        assert_eq!(url, "postgres://u@h/d?application_name=a%20b");
        assert_eq!((mode.as_deref(), root.as_deref()), (Some("verify-full"), Some("/ca.pem")));
        assert_eq!(apart("postgres://u@h/d?sslmode=disable").0, "postgres://u@h/d");
    }

    #[test]
    fn a_mode_that_is_not_known_is_refused() {
        let refused = Tls::read("postgres://u@h/d?sslmode=maybe").err().expect("refused").to_string();
        assert!(refused.contains("verify-full") && refused.contains("maybe"), "{refused}");
    }

    #[test]
    fn an_authority_that_is_not_there_is_refused() {
        let url = "postgres://u@h/d?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem";
        let refused = Tls::read(url).err().expect("refused").to_string();
        assert!(refused.contains("/nowhere/ca.pem"), "{refused}");
    }
}

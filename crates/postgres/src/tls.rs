//! Encrypted connections to PostgreSQL with rustls, only to servers whose certificate is signed by
//! a trusted CA.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::BadUrl;

/// Trusts the CAs in the file, or those of the system.
pub(crate) fn trusting(file: Option<&str>) -> Result<Arc<ClientConfig>, BadUrl> {
    let roots = match file {
        Some(file) => from_file(file)?,
        None => from_system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| BadUrl(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn from_file(file: &str) -> Result<RootCertStore, BadUrl> {
    let bad = |why: String| BadUrl(format!("sslrootcert={file} is no certificate to trust: {why}"));
    let pem = std::fs::read(file).map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(bad("the file holds none in PEM form".to_owned())),
        false => Ok(roots),
    }
}

fn from_system() -> Result<RootCertStore, BadUrl> {
    let mut roots = RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    match added {
        0 => Err(BadUrl(
            "sslmode verifies the server, and this machine trusts no certificate authority: add \
             sslrootcert=/path/of/ca.pem"
                .to_owned(),
        )),
        _ => Ok(roots),
    }
}

//! TLS certificates: loaded from files, and reloaded when the files change. Open connections stay;
//! new ones get the new certificate. If a new file is invalid, or a key does not match its
//! certificate, the old one stays and the error is logged. At start there is no old one, so an
//! invalid file is an error.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};

use super::Stats;
use crate::stamp::Stamp;

/// About how long a new certificate takes to be loaded.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Larger files hold no certificates.
const FILE_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// The certificate files, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities for mutual TLS: clients without a certificate of theirs are refused.
    pub client_ca: Option<PathBuf>,
}

/// The side of the server in TLS.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    /// The stamps of the files that were read last, valid or not: each is read, and reported, once.
    tried: Mutex<Stamps>,
    config: ArcSwap<ServerConfig>,
}

type Stamps = [Option<Stamp>; 3];

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not in PEM, or damaged: {source}", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)", path.display())]
    NoKey { path: PathBuf },
    #[error("{} and {} cannot be used together: {source}", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("{} has a certificate that is not a valid CA certificate: {source}", path.display())]
    Authority { path: PathBuf, source: rustls::Error },
    #[error("{} cannot be used to verify clients: {source}", path.display())]
    Verifier { path: PathBuf, source: VerifierBuilderError },
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let tried = files.stamps();
        let config = files.load()?;
        Ok(Self { files, tried: Mutex::new(tried), config: ArcSwap::from_pointee(config) })
    }

    /// The configuration for the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Follows the files until the future is dropped. A hangup signal loads them at once,
    /// changed or not.
    pub(super) async fn follow(self: Arc<Self>, stats: &Arc<Stats>) {
        let mut ticks = tokio::time::interval(FOLLOW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => Some(hangup),
            Err(error) => {
                warn!(%error, "cannot listen for SIGHUP; changed certificates are still noticed");
                None
            }
        };
        loop {
            let is_told = tokio::select! {
                _ = ticks.tick() => false,
                () = heard(&mut hangup) => true,
            };
            let (tls, stats) = (Arc::clone(&self), Arc::clone(stats));
            // Not on the threads that serve requests.
            let loaded = tokio::task::spawn_blocking(move || tls.refresh(is_told, &stats)).await;
            if let Err(panic) = loaded {
                error!(%panic, "the certificates could not be checked");
            }
        }
    }

    fn refresh(&self, is_told: bool, stats: &Stats) {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        // Before reading: what is written meanwhile gets another stamp, and is read next time.
        let stamps = self.files.stamps();
        if !is_told && *tried == stamps {
            return;
        }
        *tried = stamps;
        match self.files.load() {
            Ok(config) => {
                self.config.store(Arc::new(config));
                stats.certificates_replaced.add();
                info!(certificate = %self.files.certificate.display(), "the certificate is loaded");
            }
            Err(error) => {
                stats.certificates_refused.add();
                error!(%error, "the new certificate cannot be used; the old one stays in use");
            }
        }
    }
}

async fn heard(hangup: &mut Option<Signal>) {
    if let Some(hangup) = hangup
        && hangup.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

impl TlsFiles {
    fn stamps(&self) -> Stamps {
        let client_ca = self.client_ca.as_deref().and_then(Stamp::of);
        [Stamp::of(&self.certificate), Stamp::of(&self.key), client_ca]
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        let certificates = certificates(&self.certificate)?;
        let key = key(&self.key)?;
        let unusable = |source| TlsError::Unusable {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        // Named explicitly: the process's default depends on which other crates are linked.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|source| TlsError::Verifier { path: path.clone(), source })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(certificates, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        if std::fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(std::io::Error::other("it is too large for a certificate file"));
        }
        std::fs::read(path)
    };
    read().map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(TlsError::NoCertificate { path: path.to_owned() })
        }
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(TlsError::Pem { path: path.to_owned(), source }),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.to_owned() },
        source => TlsError::Pem { path: path.to_owned(), source },
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|source| TlsError::Authority { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

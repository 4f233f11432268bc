//! The body of a message, from the command line, the standard input or a file, and its other
//! fields.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use hapax_wire::Message;

use crate::duration::{self, milliseconds};
use crate::failure::Failure;
use crate::moment;

/// Larger than any queue accepts.
const BODY_BYTES_MAX: u64 = 64 * 1_024 * 1_024;

/// A body: an argument, the standard input or a file.
#[derive(Clone, Debug, Args)]
pub(crate) struct Body {
    /// The body, or `-` to read it from the standard input.
    body: Option<String>,
    /// Read the body from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "body")]
    file: Option<PathBuf>,
}

impl Body {
    pub(crate) fn is_given(&self) -> bool {
        self.body.is_some() || self.file.is_some()
    }

    pub(crate) fn read(&self) -> Result<Bytes, Failure> {
        if let Some(file) = &self.file {
            let open = std::fs::File::open(file);
            let bytes = open.and_then(bounded).map_err(|error| {
                Failure::usage(format!("{} cannot be read: {error}", file.display()))
            })?;
            return Ok(bytes);
        }
        match self.body.as_deref() {
            Some("-") => Ok(bounded(std::io::stdin().lock())?),
            Some(text) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            None => Err(Failure::usage("there is no body")
                .next("give it as an argument, as - for the standard input, or with --file FILE")),
        }
    }
}

fn bounded(source: impl Read) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    source.take(BODY_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BODY_BYTES_MAX {
        let most = format!("more than {} MiB", BODY_BYTES_MAX >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, most));
    }
    Ok(bytes.into())
}

/// The fields of a message besides key and body.
#[derive(Clone, Debug, Args)]
pub(crate) struct Envelope {
    /// The group of the message. In queues with order = group, the messages of a group are
    /// delivered in order.
    #[arg(long)]
    group: Option<String>,
    /// The content type of the body, such as application/json.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// A header, stored with the message and delivered to the worker. May be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Your own fingerprint of the operation. Sends under one key must have the same one; by
    /// default it is a digest of body and group.
    #[arg(long)]
    fingerprint: Option<String>,
    /// Do not deliver the message before this time has passed.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    delay: Option<Duration>,
    /// How long the message is tried. Then it is dead.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// When the operation was issued, as a date or an age. A retry that is older than the queue's
    /// retention is then refused.
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    issued_at: Option<u64>,
}

impl Envelope {
    pub(crate) fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    pub(crate) fn message(&self, key: &str, body: Bytes) -> Result<Message, Failure> {
        let mut headers = BTreeMap::new();
        for (name, value) in &self.headers {
            if headers.insert(name.clone(), value.clone()).is_some() {
                return Err(Failure::usage(format!("--header: {name:?} is given twice")));
            }
        }
        Ok(Message {
            r#ref: 0,
            key: Some(key.to_owned()),
            body,
            content_type: self.content_type.clone().unwrap_or_default(),
            group: self.group.clone(),
            headers,
            delay_ms: self.delay.map(milliseconds),
            ttl_ms: self.ttl.map(milliseconds),
            fingerprint: self.fingerprint.clone(),
            issued_at_ms: self.issued_at,
        })
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give it as NAME=VALUE")?;
    if name.is_empty() {
        return Err("the name is empty: give it as NAME=VALUE".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Makes a new key, a UUIDv7, which contains its time.
pub(crate) fn new_key() -> String {
    uuid::Uuid::now_v7().to_string()
}

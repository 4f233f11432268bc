//! The frames of a Claims stream, read as slices of their bytes.

use super::read::{Fields, Malformed, Settle};
use super::read::{bytes, entry, next_of, number, numbers, text, texts};
use crate::proto;

/// A `ClaimsFrame`.
#[derive(Clone, Debug)]
pub struct ClaimsFrame<'a> {
    pub queue: &'a str,
    pub leave: Vec<u64>,
    /// The remaining claims, and their number.
    claims: (Fields<'a>, usize),
    settles: (Fields<'a>, usize),
}

impl<'a> ClaimsFrame<'a> {
    pub fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let fields = Fields::new(frame);
        let mut read =
            Self { queue: "", leave: Vec::new(), claims: (fields, 0), settles: (fields, 0) };
        let mut fields = fields;
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.queue = text(value)?,
                2 => read.claims.1 += 1,
                3 => read.settles.1 += 1,
                4 => numbers(value, &mut read.leave)?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Whether it has neither claims nor settles.
    pub fn is_empty(&self) -> bool {
        self.claims.1 + self.settles.1 == 0
    }

    pub fn next_claim(&mut self) -> Result<Option<Claim<'a>>, Malformed> {
        next_of(&mut self.claims, 2)?.map(Claim::read).transpose()
    }

    pub fn next_settle(&mut self) -> Result<Option<Settle<'a>>, Malformed> {
        next_of(&mut self.settles, 3)?.map(Settle::read).transpose()
    }
}

/// A `ClaimRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim<'a> {
    pub queue: &'a str,
    pub key: &'a str,
    pub body: &'a [u8],
    pub content_type: &'a str,
    pub fingerprint: Option<&'a str>,
    pub lease_ms: Option<u64>,
    pub worker: &'a str,
    pub wait_ms: u64,
    pub issued_at_ms: Option<u64>,
    pub claim_id: &'a str,
    /// Checked to be UTF-8.
    pub headers: Vec<(&'a str, &'a str)>,
    pub reference: u64,
}

impl<'a> Claim<'a> {
    fn read(claim: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let mut headers = Vec::new();
        let mut fields = Fields::new(claim);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.queue = text(value)?,
                2 => read.key = text(value)?,
                3 => read.body = bytes(value)?,
                4 => read.content_type = text(value)?,
                5 => read.fingerprint = Some(text(value)?),
                6 => read.lease_ms = Some(number(value)?),
                7 => read.worker = text(value)?,
                8 => read.wait_ms = number(value)?,
                9 => read.issued_at_ms = Some(number(value)?),
                10 => read.claim_id = text(value)?,
                11 => entry(value, &mut headers)?,
                12 => read.reference = number(value)?,
                _ => {}
            }
        }
        read.headers = texts(headers)?;
        Ok(read)
    }

    /// About the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        let texts = [self.queue, self.key, self.content_type, self.worker, self.claim_id];
        let fingerprint = self.fingerprint.map_or(0, str::len);
        let texts = texts.iter().map(|text| text.len());
        self.body.len() + fingerprint + texts.chain(headers).sum::<usize>()
    }
}

impl<'a> From<&'a proto::ClaimRequest> for Claim<'a> {
    fn from(claim: &'a proto::ClaimRequest) -> Self {
        let headers = claim.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self {
            queue: &claim.queue,
            key: &claim.key,
            body: &claim.body,
            content_type: &claim.content_type,
            fingerprint: claim.fingerprint.as_deref(),
            lease_ms: claim.lease_ms,
            worker: &claim.worker,
            wait_ms: claim.wait_ms,
            issued_at_ms: claim.issued_at_ms,
            claim_id: &claim.claim_id,
            headers: headers.collect(),
            reference: claim.r#ref,
        }
    }
}

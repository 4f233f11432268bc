//! The settles of a Work stream, and their answers.

use std::sync::Arc;

use hapax_core::Verb;
use hapax_wire::lean;
use tonic::Status;

use super::super::part::Part;
use super::super::status::malformed;
use super::{News, WorkStream};
use crate::auth::Principal;
use crate::doors::shape;
use crate::engine::Listed;
use crate::problem::Problem;
use crate::service::{Admitted, Service, Settles};

/// Settles that were read and not yet submitted.
#[derive(Default)]
pub(super) struct Unsubmitted {
    pub(super) settles: Settles<u64>,
    pub(super) bytes: usize,
    pub(super) memory: Vec<Admitted>,
}

impl WorkStream {
    pub(super) fn read_settle(
        &mut self,
        settle: &lean::Settle<'_>,
        list: &mut Unsubmitted,
    ) -> Result<(), Status> {
        let Some(open) = &self.open else { return Ok(()) };
        match verb(&self.service, &self.principal, settle).map_err(malformed)? {
            Ok(verb) => {
                let ends = match verb {
                    Verb::Done { .. } | Verb::Fail { .. } | Verb::Park { .. } | Verb::Release => {
                        true
                    }
                    Verb::Extend { .. } | Verb::Begin | Verb::Save { .. } => false,
                };
                if ends {
                    self.held = self.held.saturating_sub(1);
                }
                let opened = self.service.open(&open.permit, settle.lease, verb);
                if list.settles.is_empty() {
                    list.settles = Settles::new(&self.service);
                }
                list.settles.push(settle.reference, opened);
            }
            Err(problem) => put_refusal(&mut self.refusals, settle.reference, &problem),
        }
        Ok(())
    }

    pub(super) fn hand_over(&mut self, list: &mut Unsubmitted) {
        let Unsubmitted { settles, bytes, memory } = std::mem::take(list);
        let (Some(open), false) = (&self.open, settles.is_empty()) else { return };
        let count = settles.len();
        let each_bytes = bytes.div_ceil(count);
        self.unanswered += count;
        self.unanswered_bytes += count * each_bytes;
        let outbox = self.outbox.clone();
        // Memory is returned when everything submitted is answered.
        let memory = Arc::new(memory);
        let results = Arc::clone(&self.results);
        let reply = move |numbers: Vec<u64>, listed: Result<Listed, Problem>| {
            let _until_now = &memory;
            let part = Part::new(numbers, listed, Arc::clone(&results), each_bytes);
            outbox.push(News::Settled(part));
        };
        self.service.start_settle(&open.permit, settles, &self.results, reply);
    }
}

/// The verb of a settle. Most are `done` without emits.
pub(in super::super) fn verb(
    service: &Service,
    principal: &Arc<Principal>,
    settle: &lean::Settle<'_>,
) -> Result<Result<Verb, Problem>, lean::Malformed> {
    Ok(match settle.plain_done()? {
        Some(result) => {
            let result = result.map(|(body, content_type)| shape::blob(body, content_type));
            result.transpose().map(|result| Verb::Done { result, emits: Vec::new() })
        }
        None => {
            let emit_to = |queue: &str| service.may_emit(principal, queue);
            shape::verb(service.recipe(), settle.verb()?, emit_to)
        }
    })
}

pub(in super::super) fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
    lean::put_nested(frame, lean::SETTLED, &shape::unsettled(number, problem));
}

//! The settles of a Work stream, and their answers.

use std::sync::Arc;

use hapax_core::{Settled, Verb};
use hapax_wire::lean;
use tonic::Status;

use super::super::part::Part;
use super::super::status::malformed;
use super::{News, WorkStream};
use crate::doors::shape;
use crate::engine::Listed;
use crate::problem::Problem;
use crate::service::{Admitted, Opened};

/// Settles that were read and not yet handed over.
#[derive(Default)]
pub(super) struct List {
    pub(super) settles: Vec<(u64, Opened)>,
    pub(super) bytes: usize,
    pub(super) memory: Vec<Admitted>,
}

impl WorkStream {
    pub(super) fn read_settle(
        &mut self,
        settle: &lean::Settle<'_>,
        list: &mut List,
    ) -> Result<(), Status> {
        let Some(open) = &self.open else { return Ok(()) };
        let verb = match settle.plain_done().map_err(malformed)? {
            Some(result) => {
                let result = result.map(|(body, content_type)| shape::blob(body, content_type));
                result.transpose().map(|result| Verb::Done { result, emits: Vec::new() })
            }
            None => {
                let emit_to = |queue: &str| self.service.may_emit(&self.principal, queue);
                shape::verb(settle.verb().map_err(malformed)?, emit_to)
            }
        };
        match verb {
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
                list.settles.push((settle.reference, opened));
            }
            Err(problem) => put_refusal(&mut self.refusals, settle.reference, &problem),
        }
        Ok(())
    }

    pub(super) fn hand_over(&mut self, list: &mut List) {
        let List { settles, bytes, memory } = std::mem::take(list);
        let (Some(open), false) = (&self.open, settles.is_empty()) else { return };
        let count = settles.len();
        let each_bytes = bytes.div_ceil(count);
        self.unanswered += count;
        self.unanswered_bytes += count * each_bytes;
        let outbox = self.outbox.clone();
        // Memory is given back when everything that was handed over is answered.
        let memory = Arc::new(memory);
        let results = Arc::clone(&self.results);
        let reply = move |numbers: Vec<u64>, listed: Result<Listed<Settled>, Problem>| {
            let _until_now = &memory;
            let part = Part::new(numbers, listed, Arc::clone(&results), each_bytes);
            outbox.push(News::Settled(part));
        };
        self.service.start_settle(&open.permit, settles, &self.results, reply);
    }
}

pub(in super::super) fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
    lean::put_nested(frame, lean::SETTLED, &shape::unsettled(number, problem));
}

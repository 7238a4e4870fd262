-- Precedes every script. The unit separator, which no name contains, separates the names within a key. SESSION is the
-- session's id and, behind a record separator, its principal (SessionKey.columns).
--   PREFIX:s:TENANT AGENT SESSION  hash: owner, index, created, updated, expires, summary, upto
--   PREFIX:t:TENANT AGENT SESSION  list: one JSON array for each turn; the position is its seq
--   PREFIX:a:TENANT AGENT          sorted set of session ids
--   PREFIX:o:TENANT OWNER          sorted set of AGENT SESSION
--   PREFIX:l:TENANT AGENT SESSION  hash: token, holder, expires, interrupted
--   PREFIX:version                 of the keys, see migrate.lua
--   PREFIX:tokens                  number of the last lease
--   PREFIX:x                       sorted set of TENANT AGENT SESSION by the time they expire
local US = '\31'

local function over(expires, now)
    return expires and tonumber(expires) > 0 and tonumber(expires) <= tonumber(now)
end

local function forget(prefix, id)
    local tenant, agent, session = string.match(id, '^(.-)\31(.-)\31(.*)$')
    local hash = prefix .. ':s:' .. id
    local index = redis.call('HGET', hash, 'index')
    redis.call('ZREM', prefix .. ':a:' .. tenant .. US .. agent, session)
    redis.call('ZREM', prefix .. ':x', id)
    if index then
        redis.call('ZREM', index, agent .. US .. session)
    end
    return redis.call('DEL', hash, prefix .. ':t:' .. id)
end

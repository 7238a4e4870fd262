-- Sessions in the order of their ids. ARGV: prefix, tenant, agent, owner or empty, after, limit, now, "1" for the owner's only.
local prefix, tenant, agent, owner, after, limit, now, owned = unpack(ARGV)
local index, before, last = prefix .. ':a:' .. tenant .. US .. agent, '', '+'
if owned == '1' then
    index, before, last = prefix .. ':o:' .. tenant .. US .. owner, agent .. US, '(' .. agent .. ' '
end
local from, found = '(' .. before .. after, {}
if after == '' then
    from = '[' .. before
end
while #found < tonumber(limit) do
    local members = redis.call('ZRANGEBYLEX', index, from, last, 'LIMIT', 0, limit)
    for _, member in ipairs(members) do
        local session = string.sub(member, #before + 1)
        local id = tenant .. US .. agent .. US .. session
        local about = redis.call('HMGET', prefix .. ':s:' .. id, 'owner', 'created', 'updated', 'expires')
        if not about[1] then
            redis.call('ZREM', index, member)
        elseif not over(about[4], now) and #found < tonumber(limit) then
            found[#found + 1] = {session, about[1], redis.call('LLEN', prefix .. ':t:' .. id), about[2], about[3]}
        end
        from = '(' .. member
    end
    if #members < tonumber(limit) then
        break
    end
end
return found
